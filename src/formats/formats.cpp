// The table of input formats. `--backend auto` takes the first row that recognises a folder.
#include <algorithm>
#include <array>

#include "formats/fsdp.h"
#include "formats/hf.h"
#include "formats/megatron.h"
#include "unshard/checkpoint_format.h"

namespace unshard {

std::span<const CheckpointFormat* const> checkpoint_formats() {
  static const std::array<const CheckpointFormat*, 3> table{&fsdp_format(), &megatron_format(), &hf_format()};
  return table;
}

const CheckpointFormat& format_named(std::string_view name) {
  std::vector<std::string> known;
  for (const CheckpointFormat* format : checkpoint_formats()) {
    if (format->name() == name) return *format;
    if (std::find(known.begin(), known.end(), format->backend()) == known.end()) known.emplace_back(format->backend());
  }
  throw Error(ErrorCode::unsupported, "--backend " + printable(name) + ": this version reads " + name_list(known) + " only");
}

}  // namespace unshard
