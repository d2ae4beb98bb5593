/* Loaded with LD_PRELOAD into the program under test: makes calls on chosen files fail, lie, wait or kill, on chosen ranks.
 *
 *   FAULT=<what>      open-eacces, open-kill, read-eio, read-slow, read-kill, write-enospc, write-eio, write-lie (reports success, writes nothing),
 *                     write-slow, write-kill, writeback-eio, fsync-kill, rename-kill, collective-eio, collective-lie, collective-short, collective-kill
 *   FAULT_RANK=<n>    of mpirun (OMPI_COMM_WORLD_RANK) or srun (SLURM_PROCID); without it: every rank
 *   FAULT_PATH=<part> only files whose path holds this text
 *   FAULT_AFTER=<n>   the first n such calls of a process do no harm (default 0)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int calls = 0;

static int is_chosen(const char* fault, const char* path) {
  const char* wanted = getenv("FAULT");
  const char* rank = getenv("FAULT_RANK");
  const char* of_mpirun = getenv("OMPI_COMM_WORLD_RANK");
  const char* own = of_mpirun != NULL ? of_mpirun : getenv("SLURM_PROCID");
  const char* part = getenv("FAULT_PATH");
  const char* after = getenv("FAULT_AFTER");
  if (wanted == NULL || strcmp(wanted, fault) != 0) return 0;
  if (rank != NULL && strcmp(rank, own == NULL ? "0" : own) != 0) return 0;
  if (part != NULL && strstr(path, part) == NULL) return 0;
  return __sync_fetch_and_add(&calls, 1) >= (after == NULL ? 0 : atoi(after));
}

static int descriptor_is_chosen(const char* fault, int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return is_chosen(fault, path);
}

int open(const char* path, int flags, ...) {
  static int (*real)(const char*, int, ...) = NULL;
  if (real == NULL) real = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (is_chosen("open-eacces", path)) {
    errno = EACCES;
    return -1;
  }
  if (is_chosen("open-kill", path)) raise(SIGKILL);
  return real(path, flags, mode);
}

int rename(const char* from, const char* to) {
  static int (*real)(const char*, const char*) = NULL;
  if (real == NULL) real = (int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename");
  if (is_chosen("rename-kill", from)) raise(SIGKILL);
  return real(from, to);
}

int fsync(int descriptor) {
  static int (*real)(int) = NULL;
  if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  if (descriptor_is_chosen("fsync-kill", descriptor)) raise(SIGKILL);
  return real(descriptor);
}

int sync_file_range(int descriptor, off64_t position, off64_t length, unsigned int flags) {
  static int (*real)(int, off64_t, off64_t, unsigned int) = NULL;
  if (real == NULL) real = (int (*)(int, off64_t, off64_t, unsigned int))dlsym(RTLD_NEXT, "sync_file_range");
  if ((flags & SYNC_FILE_RANGE_WAIT_AFTER) != 0 && descriptor_is_chosen("writeback-eio", descriptor)) {
    errno = EIO;
    return -1;
  }
  return real(descriptor, position, length, flags);
}

ssize_t pread(int descriptor, void* to, size_t size, off_t position) {
  static ssize_t (*real)(int, void*, size_t, off_t) = NULL;
  if (real == NULL) real = (ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread");
  if (descriptor_is_chosen("read-eio", descriptor)) {
    errno = EIO;
    return -1;
  }
  if (descriptor_is_chosen("read-slow", descriptor)) usleep(200 * 1000);
  if (descriptor_is_chosen("read-kill", descriptor)) raise(SIGKILL);
  return real(descriptor, to, size, position);
}

ssize_t pwrite(int descriptor, const void* from, size_t size, off_t position) {
  static ssize_t (*real)(int, const void*, size_t, off_t) = NULL;
  if (real == NULL) real = (ssize_t(*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
  if (descriptor_is_chosen("write-enospc", descriptor)) {
    errno = ENOSPC;
    return -1;
  }
  if (descriptor_is_chosen("write-eio", descriptor)) {
    errno = EIO;
    return -1;
  }
  if (descriptor_is_chosen("write-lie", descriptor)) return (ssize_t)size;
  if (descriptor_is_chosen("write-kill", descriptor)) raise(SIGKILL);
  if (descriptor_is_chosen("write-slow", descriptor)) usleep(1500 * 1000);
  return real(descriptor, from, size, position);
}

int MPI_File_write_at_all(MPI_File file, MPI_Offset position, const void* from, int count, MPI_Datatype type, MPI_Status* status) {
  const int has_data = count > 0;
  if (has_data && is_chosen("collective-kill", "")) raise(SIGKILL);
  const int lies = has_data && is_chosen("collective-lie", "");
  const int is_short = has_data && is_chosen("collective-short", "");
  const int code = PMPI_File_write_at_all(file, position, from, lies ? 0 : is_short ? count / 2 : count, type, status);
  if (lies) MPI_Status_set_elements(status, type, count);
  return has_data && is_chosen("collective-eio", "") ? MPI_ERR_IO : code;
}
