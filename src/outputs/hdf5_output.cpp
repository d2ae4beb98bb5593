// The HDF5 output, `model.h5`: the header is everything that HDF5 writes itself (src/hdf5/image.cpp), the tensors follow where it says.
// docs/hdf5.md describes the file.
#include "outputs/hdf5_output.h"

#include <algorithm>

#include "checked_math.h"
#include "hdf5_library.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr const char* file_name = "model.h5";
constexpr std::uint64_t model_limit_bytes = std::uint64_t{1} << 48;  ///< a larger one is a lie of the checkpoint

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const std::size_t length = first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return false;
    for (std::size_t k = 1; k < length; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0U) != 0x80) return false;
    i += length;
  }
  return true;
}

/// HDF5 takes '/' for a path, '.' for the group itself.
void check_name(const std::string& name) {
  const bool is_fine = !name.empty() && name != "." && name.find('/') == std::string::npos && name.find('\0') == std::string::npos && is_utf8(name);
  if (is_fine) return;
  throw Error(ErrorCode::unsupported,
              "'" + printable(name) + "': is no name that a dataset can have in HDF5; use --output-format safetensors, or rename it by --custom-mapping");
}

std::uint64_t bytes_of(const Target& target) {
  const auto bytes = checked_multiply(volume(target.shape), info(target.dtype).size_bytes);
  if (!bytes || *bytes > model_limit_bytes)
    throw Error(ErrorCode::bad_input, printable(target.name) + ": " + to_string(target.shape) + " is more than any model has");
  return *bytes;
}

class Hdf5Output final : public OutputFormat {
 public:
  [[nodiscard]] std::string_view name() const override { return "hdf5"; }
  [[nodiscard]] std::string_view description() const override { return "one HDF5 file, a dataset for each parameter"; }

  [[nodiscard]] Layout lay_out(const Targets& targets, const LayoutOptions& options) const override {
    std::vector<Hdf5Dataset> datasets;
    std::uint64_t total = 0;
    for (const Target& target : targets.targets) {
      check_name(target.name);
      total += bytes_of(target);  // each is at most 2^48
      if (total > model_limit_bytes) throw Error(ErrorCode::bad_input, "the tensors have more bytes together than any model");
      datasets.push_back({target.name, target.dtype, target.shape, 0});
    }
    std::vector<std::pair<std::string, std::string>> attributes{{"format", "unshard model 1"}, {"unshard_version", UNSHARD_VERSION}};
    if (!options.config_text.empty()) attributes.emplace_back("config", options.config_text);
    Hdf5Image image = hdf5().make_image(datasets, attributes);
    Layout layout;
    for (std::size_t i = 0; i < datasets.size(); ++i)
      layout.placed.push_back({static_cast<std::uint32_t>(i), 0, image.positions[i], bytes_of(targets.targets[i])});
    std::stable_sort(layout.placed.begin(), layout.placed.end(),
                     [](const PlacedTarget& a, const PlacedTarget& b) { return a.position < b.position; });
    layout.files.push_back({file_name, std::move(image.header), image.size_bytes});
    return layout;
  }

  [[nodiscard]] std::vector<SmallFile> indexes(const Targets&, const Layout&) const override { return {}; }
};

}  // namespace

const OutputFormat& hdf5_output() {
  static const Hdf5Output output;
  return output;
}

}  // namespace unshard
