// The table of output formats: one row each.
#include <array>

#include "outputs/hdf5_output.h"
#include "outputs/safetensors.h"
#include "unshard/error.h"
#include "unshard/output_format.h"

namespace unshard {

std::span<const OutputFormat* const> output_formats() {
  static const std::array<const OutputFormat*, 2> table{&safetensors_output(), &hdf5_output()};
  return table;
}

const OutputFormat& output_named(std::string_view name) {
  std::vector<std::string> known;
  for (const OutputFormat* format : output_formats()) {
    if (format->name() == name) return *format;
    known.emplace_back(format->name());
  }
  throw Error(ErrorCode::usage, "--output-format " + printable(name) + ": there is no such format; choose one of " + name_list(known));
}

}  // namespace unshard
