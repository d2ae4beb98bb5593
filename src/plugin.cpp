#include "plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "unshard/error.h"

namespace unshard {
namespace {

std::vector<std::string> candidates(const std::string& name) {
  std::vector<std::string> paths;
  std::error_code failed;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (!failed) {
    for (const char* folder : {".", "../lib"}) paths.push_back((program.parent_path() / folder / name).lexically_normal());
  }
#ifdef UNSHARD_LIBRARY_DIR
  paths.push_back(std::string(UNSHARD_LIBRARY_DIR "/") + name);
#endif
  paths.push_back(name);
  return paths;
}

}  // namespace

void* load_entry(const std::string& name, const char* entry_name, const std::string& what) {
  std::string tried;
  for (const std::string& path : candidates(name)) {
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
    return entry;
  }
  throw Error(ErrorCode::internal, "the library for " + what + " can't be loaded: " + tried + "; build or install it with the program");
}

}  // namespace unshard
