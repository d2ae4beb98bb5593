// The program: parse, run one command on all ranks, print one line if it failed, return one code.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "binding.h"
#include "build_info.h"
#include "launcher.h"
#include "program/descriptors.h"
#include "program/options.h"
#include "program/signals.h"
#include "program/standard_streams.h"
#include "runtime.h"
#include "unshard/agree.h"
#include "unshard/checkpoint_format.h"
#include "unshard/merge.h"
#include "unshard/output_format.h"

extern "C" [[gnu::weak]] void __lsan_do_leak_check();  // sanitizer/lsan_interface.h

namespace unshard {
namespace {

Abilities abilities() {
  Abilities abilities;
  for (const CheckpointFormat* format : checkpoint_formats()) {
    if (std::ranges::find(abilities.formats, format->backend()) == abilities.formats.end())
      abilities.formats.emplace_back(format->backend());
  }
  for (const OutputFormat* output : output_formats()) abilities.outputs.emplace_back(output->name());
  return abilities;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "unknown";
  const std::string whole(text.data(), static_cast<std::size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}

std::string version_text() {
  const auto line = [](const char* what, std::string_view value) { return std::string(what) + ": " + std::string(value) + "\n"; };
  return "unshard " + std::string(build_info::version) + "\n" +
         line("build", std::string(build_info::build_type) + ", " + std::string(build_info::compiler)) + line("MPI", mpi_library()) +
         line("LibTorch", build_info::libtorch_version) + line("HDF5", build_info::hdf5_version) +
         line("formats", joined(abilities().formats)) + line("outputs", joined(abilities().outputs)) +
         line("families", joined(family_names()));
}

/// What needs no ranks; none for a real command.
std::optional<std::string> plain_answer(const CommandLine& line) {
  if (line.command == Command::version) return version_text();
  if (line.command == Command::help) return line.help;
  if (line.command != Command::families) return std::nullopt;
  std::string text;
  const std::vector<std::string> from_megatron = megatron_family_names();
  for (const std::string& name : family_names())
    text += name + (std::find(from_megatron.begin(), from_megatron.end(), name) != from_megatron.end() ? "  megatron\n" : "\n");
  return text;
}

constexpr const char* stdout_failed = "standard output: can't be written";

int print_to_stdout(const std::string& text) {
  if ((std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) || errno == EPIPE) return 0;
  print_error(stdout_failed);
  return static_cast<int>(ErrorCode::io);
}

/// The first error of a report of `check` (which rank 0 has), as one line.
std::string first_finding(const std::string& report) {
  const nlohmann::json json = nlohmann::json::parse(report, nullptr, false);
  if (!json.is_object()) return "the checkpoint is not complete";
  std::string text;
  std::size_t others = 0;
  for (const nlohmann::json& finding : json.value("findings", nlohmann::json::array())) {
    if (finding.value("severity", "") != "error") continue;
    if (text.empty()) {
      text = printable(finding.value("subject", "")) + ": " + finding.value("text", "");
    } else {
      ++others;
    }
  }
  if (text.empty()) return "the checkpoint is not complete";
  return others == 0 ? text : text + ", and " + std::to_string(others) + (others == 1 ? " more finding" : " more findings");
}

Ending run_command(const Session& session, CommandLine& line) {
  for (const std::string& note : line.notes) session.log.line("note: " + note);
  std::string json;
  Ending ending;
  if (line.command == Command::merge) {
    json = merge(session, line.merge);
  } else if (line.command == Command::merge_lora) {
    json = merge_lora(session, line.merge_lora);
  } else if (line.command == Command::extract_lora) {
    json = extract_lora(session, line.extract_lora);
  } else if (line.command == Command::check) {
    CheckResult result = check(session, line.check);
    json = std::move(result.json);
    if (!result.complete) ending = {static_cast<int>(ErrorCode::bad_input), "check: " + first_finding(json)};
  } else if (line.command == Command::test) {
    TestResult result = test(session, line.test);
    json = std::move(result.json);
    if (result.equal && !result.changed)
      ending = {static_cast<int>(ErrorCode::verification), "test: nothing changed from the base model " +
                                                               printable(line.test.base_dir, 4096) +
                                                               "; is this the checkpoint of the trained model?"};
    if (!result.equal)
      ending = {
          static_cast<int>(ErrorCode::verification),
          std::string("test: the models differ") +
              (line.verbosity == Verbosity::quiet && !line.json ? "; without --quiet, or with --json, the differences are listed" : "")};
  } else {
    json = inspect(session, line.inspect_path, line.json, line.inspect_cache_dir);
  }
  if (line.json && session.comm.rank() == 0) session.log.data(json);
  return ending;
}

/// I/O threads of a command that goes through data; 0 of another one.
int threads_of(const CommandLine& line) {
  if (line.command == Command::merge) return line.merge.dry_run ? 0 : line.merge.input.threads;
  if (line.command == Command::merge_lora) return line.merge_lora.merge.dry_run ? 0 : line.merge_lora.merge.input.threads;
  if (line.command == Command::extract_lora) return line.extract_lora.merge.dry_run ? 0 : line.extract_lora.merge.input.threads;
  if (line.command == Command::check) return line.check.deep ? line.check.input.threads : 0;
  return line.command == Command::test ? line.test.input.threads : 0;
}

/// Of rank 0, which prints it; the launcher binds others alike.
void note_binding(const Comm& comm, CommandLine& line) {
  int ranks = 0;
  for (int rank = 0; rank < comm.size(); ++rank) ranks += comm.node_of(rank) == comm.node_of(0) ? 1 : 0;
  const std::optional<UsableCpus> cpus = usable_cpus();
  const std::optional<std::string> note = cpus ? note_of_binding(*cpus, ranks, threads_of(line)) : std::nullopt;
  if (note) line.notes.push_back(*note);
}

Ending ending_of_current_exception() {
  const Error error = current_error();
  return {static_cast<int>(error.code()), error.what()};
}

/// The command on this rank; what it throws becomes an ending.
Ending run_on_this_rank(const Launch& launch, Comm& comm, CommandLine& line) {
  try {
    if (!launch.variable.empty()) note_binding(comm, line);
    watch_signals(line.command == Command::inspect ? OnSignal::end_at_once : OnSignal::stop_at_next_piece, comm.rank() == 0);
    const std::unique_ptr<FileSystem> files = posix_file_system();
    const std::unique_ptr<Log> log = make_log(comm.rank(), line.verbosity);
    const Ending ending = run_command({comm, *files, *log, received_signal}, line);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw Error(ErrorCode::io, stdout_failed);
    return ending;
  } catch (...) {
    return ending_of_current_exception();
  }
}

/// MPI did not start. Each task is alone, so the one that the launcher counts first speaks; the launcher may end the others at the first
/// exit.
int give_up(const Launch& launch, const Ending& ending) {
  if (launch.rank == 0) {
    print_error(ending.text);
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  return ending.code;
}

int run_with_ranks(const Launch& launch, std::optional<CommandLine>& line, const Ending& refused) {
  std::unique_ptr<Runtime> runtime;
  try {
    runtime = std::make_unique<Runtime>(launch);
  } catch (...) {
    return give_up(launch, ending_of_current_exception());
  }
  const Ending ending = line ? run_on_this_rank(launch, runtime->comm(), *line) : refused;
  const int code = runtime->finish(ending);
  ignore_signals();
  return code;
}

/// For OpenBLAS, below Debian's LibTorch. It starts a thread for each core when it is loaded; none of them is used. And of Debian 12 it
/// takes processors that are younger than it is for a Pentium 4 (seen on a Xeon of 2023: folding took 1.1 to 1.3 times as long), so it is
/// told the kernels that this one can run. What the user has set stays.
void set_up_blas() {
  setenv("OPENBLAS_NUM_THREADS", "1", 0);
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    setenv("OPENBLAS_CORETYPE", "Haswell", 0);
  }
#endif
}

int run(const std::vector<std::string>& arguments) {
  const Launch launch = find_launch(process_environment());
  std::optional<CommandLine> line;
  Ending refused;
  try {
    line = parse_command_line(arguments, abilities());
    if (const std::optional<std::string> text = plain_answer(*line)) {
      return launch.rank == 0 ? print_to_stdout(*text) : 0;
    }
  } catch (...) {
    refused = ending_of_current_exception();
  }
  return run_with_ranks(launch, line, refused);
}

/// Ends the process as it is: LibTorch takes 0.07 s for taking its tables apart, for nobody. But a sanitizer, if it is there, looks for
/// leaks.
[[noreturn]] void leave(int code) {
  if (__lsan_do_leak_check != nullptr) __lsan_do_leak_check();
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace
}  // namespace unshard

int main(int argc, char** argv) {
  unshard::keep_standard_descriptors_apart();
  unshard::end_job_on_terminate();
  unshard::fail_instead_of_dying();
  unshard::allow_many_open_files();
  unshard::set_up_blas();
  unshard::leave(unshard::run({argv + 1, argv + argc}));
}
