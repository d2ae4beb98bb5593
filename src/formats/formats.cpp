// The table of input formats. `--backend auto` takes the first row that recognises a folder.
#include <algorithm>
#include <array>

#include "formats/accelerate.h"
#include "formats/dcp.h"
#include "formats/fsdp.h"
#include "formats/hf.h"
#include "formats/megatron.h"
#include "formats/torch_dist.h"
#include "unshard/checkpoint_format.h"

namespace unshard {

std::span<const CheckpointFormat* const> checkpoint_formats() {
  static const std::array<const CheckpointFormat*, 6> table{&fsdp_format(),       &megatron_format(), &torch_dist_format(),
                                                            &accelerate_format(), &dcp_format(),      &hf_format()};
  return table;
}

const CheckpointFormat& format_named(std::string_view name) {
  for (const CheckpointFormat* format : checkpoint_formats()) {
    if (format->name() == name) return *format;
  }
  throw Error(ErrorCode::internal, "there is no format " + printable(name));
}

std::vector<const CheckpointFormat*> formats_for(std::string_view backend) {
  std::vector<const CheckpointFormat*> formats;
  std::vector<std::string> known;
  for (const CheckpointFormat* format : checkpoint_formats()) {
    if (backend == "auto" || format->backend() == backend) formats.push_back(format);
    if (std::find(known.begin(), known.end(), format->backend()) == known.end()) known.emplace_back(format->backend());
  }
  if (formats.empty())
    throw Error(ErrorCode::unsupported, "--backend " + printable(backend) + ": this version reads " + name_list(known) + " only");
  return formats;
}

}  // namespace unshard
