// Extension point: an output is one file src/outputs/<name>.cpp and one row of the table in src/outputs/outputs.cpp. It lays out bytes and writes
// the small files; moving bytes is shared.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unshard/plan.h"
#include "unshard/targets.h"

namespace unshard {

struct LayoutOptions {
  std::uint64_t max_shard_bytes = 50'000'000'000;  ///< decimal, as transformers 5 does by default
  std::string config_text = {};  ///< config.json as it is published: for a format that keeps it in the file of weights
  std::vector<std::uint32_t> file_by_target = {};  ///< numbers without gaps, instead of splitting by size; empty: by size
  std::vector<std::uint32_t> block_by_target = {};  ///< see Mapping; empty: none
};

/// A small file to write beside the weights.
struct SmallFile {
  std::string name;
  std::string content;
};

class OutputFormat {
 public:
  virtual ~OutputFormat() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;  ///< of --output-format
  [[nodiscard]] virtual std::string_view description() const = 0;
  /// Local, pure. Files, header bytes, position of each target. Throws Error(unsupported) for a dtype that the format lacks.
  [[nodiscard]] virtual Layout lay_out(const Targets& targets, const LayoutOptions& options) const = 0;
  /// Local, pure. The index files, written last; none for a single file.
  [[nodiscard]] virtual std::vector<SmallFile> indexes(const Targets& targets, const Layout& layout) const = 0;
};

[[nodiscard]] std::span<const OutputFormat* const> output_formats();
/// Throws Error(usage) naming the formats that there are.
[[nodiscard]] const OutputFormat& output_named(std::string_view name);

}  // namespace unshard
