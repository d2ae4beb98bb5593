// Finds and loads libunshard_arithmetic.so, which holds everything of LibTorch, when something must be computed for the first time.
#include "unshard/arithmetic.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "unshard/error.h"

namespace unshard {
namespace {

constexpr const char* library_name = "libunshard_arithmetic.so";
constexpr const char* entry_name = "unshard_arithmetic_v1";

/// Beside the program, where `cmake --install` puts libraries, one folder up (programs of the tests), then where the system looks.
std::vector<std::string> candidates() {
  std::vector<std::string> paths;
  std::error_code failed;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (!failed) {
    for (const char* folder : {".", "../lib", ".."}) paths.push_back((program.parent_path() / folder / library_name).lexically_normal());
  }
#ifdef UNSHARD_LIBRARY_DIR
  paths.push_back(std::string(UNSHARD_LIBRARY_DIR "/") + library_name);
#endif
  paths.emplace_back(library_name);
  return paths;
}

const Arithmetic& load() {
  std::string tried;
  for (const std::string& path : candidates()) {
    std::error_code failed;
    if (path.find('/') != std::string::npos && !std::filesystem::exists(path, failed)) continue;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = dlerror();
      tried += (tried.empty() ? "" : "; ") + printable(path, 4096) + " (" + printable(reason == nullptr ? "" : reason, 1000) + ")";
      continue;
    }
    void* entry = dlsym(library, entry_name);
    if (entry == nullptr)
      throw Error(ErrorCode::internal, printable(path, 4096) + ": is of another version of this program (no " + entry_name + ")");
    return *reinterpret_cast<const Arithmetic* (*)()>(entry)();
  }
  throw Error(ErrorCode::internal, "the library for arithmetic can't be loaded: " + tried + "; build or install it with the program");
}

}  // namespace

const Arithmetic& arithmetic() {
  static const Arithmetic& loaded = load();
  return loaded;
}

}  // namespace unshard
