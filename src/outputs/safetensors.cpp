// The safetensors output: the files, byte for byte, that transformers' save_pretrained would write.
//
// A file (safetensors/src/tensor.rs):
//     u64, little-endian: length of the header that follows
//     JSON: {"__metadata__":{"format":"pt"},"<name>":{"dtype":"BF16","shape":[2,3],"data_offsets":[begin,end]},...}, padded with spaces to
//     8 bytes the tensors, without holes; offsets count from the end of the header
// Tensors lie in order of their type (the reverse of the reference's enum Dtype: the widest first), then of their name's bytes.
//
// Which tensor goes into which file: huggingface_hub/serialization/_base.py, split_state_dict_into_shards_factory. Tensors are walked in
// the order of the state dict; one above the limit gets a file of its own, at once, while the file being filled stays open; that one is
// counted when it closes.
#include "outputs/safetensors.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "checked_math.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::uint64_t header_limit_bytes = 25'000'000;  ///< what the Hub's parser accepts
constexpr std::uint64_t model_limit_bytes = std::uint64_t{1}
                                            << 48;  ///< a larger one is a lie of the checkpoint (a tensor that repeats one element)
constexpr std::string_view start_of_json = R"({"__metadata__":{"format":"pt"})";
constexpr std::size_t entry_overhead_bytes = 128;  ///< above everything in an entry but its name: dtype, shape, offsets, punctuation

// Smallest first: the reverse of the order in a file.
constexpr std::array saved_last_to_first{
    DType::boolean,     DType::f4_x2,       DType::u8,  DType::i8,  DType::f8_e5m2, DType::f8_e4m3, DType::f8_e8m0,
    DType::f8_e4m3fnuz, DType::f8_e5m2fnuz, DType::i16, DType::u16, DType::f16,     DType::bf16,    DType::i32,
    DType::u32,         DType::f32,         DType::c64, DType::f64, DType::i64,     DType::u64,
};

std::size_t rank_of(DType dtype) {
  return static_cast<std::size_t>(std::find(saved_last_to_first.begin(), saved_last_to_first.end(), dtype) - saved_last_to_first.begin());
}

std::string quoted(const std::string& name) {
  try {
    return nlohmann::json(name).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::bad_input,
                printable(name) + ": the name is not valid UTF-8, which safetensors needs; rename it by --custom-mapping");
  }
}

/// As published: a pair type counts two elements a byte in its last dimension.
Shape published_shape(const Target& target) {
  Shape shape = target.shape;
  if (target.dtype != DType::f4_x2) return shape;
  const auto doubled = shape.empty() ? std::nullopt : checked_multiply(shape[shape.size() - 1], 2);
  if (!doubled) {
    throw Error(ErrorCode::unsupported,
                printable(target.name) + ": " + to_string(shape) + " of float4_e2m1fn_x2 has no shape in safetensors");
  }
  shape[shape.size() - 1] = *doubled;
  return shape;
}

void check_target_can_be_saved(const Target& target) {
  if (rank_of(target.dtype) == saved_last_to_first.size()) {
    throw Error(ErrorCode::unsupported, printable(target.name) + ": safetensors has no element type for " +
                                            std::string(info(target.dtype).name) + "; choose another --dtype, or leave it out with --drop");
  }
  if (target.name == "__metadata__") {
    throw Error(ErrorCode::unsupported, "__metadata__: a tensor can't have this name in safetensors; rename it by --custom-mapping");
  }
}

std::string entry_of(const Target& target, std::uint64_t begin, std::uint64_t end) {
  std::string entry = quoted(target.name);
  entry += R"(:{"dtype":")";
  entry += info(target.dtype).safetensors;
  entry += R"(","shape":[)";
  const Shape shape = published_shape(target);
  for (std::size_t i = 0; i < shape.size(); ++i) entry += (i ? "," : "") + std::to_string(shape[i]);
  entry += R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
  return entry;
}

Error too_large(const Target& target) {
  return {ErrorCode::bad_input, printable(target.name) + ": with shape " + to_string(target.shape) + " the model would have more than " +
                                    std::to_string(model_limit_bytes) + " bytes; the checkpoint is damaged"};
}

/// Deals the targets to files as the reference does; a header that would pass the Hub's limit closes a file too.
class Splitter {
 public:
  explicit Splitter(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// A block: targets that stay together.
  void add(const std::vector<std::uint32_t>& block, const Targets& targets) {
    std::uint64_t size = 0, header = 0;
    for (const std::uint32_t number : block) {
      const Target& target = targets.targets[number];
      size += target_bytes(target);
      header += entry_overhead_bytes + quoted(target.name).size() + 20 * target.shape.size();
    }
    if (size > limit_bytes_) {
      files_.push_back(block);
      return;
    }
    if (!open_.empty() && (size > limit_bytes_ - open_bytes_ || open_header_bytes_ + header > header_limit_bytes)) close();
    open_.insert(open_.end(), block.begin(), block.end());
    open_bytes_ += size;
    open_header_bytes_ += header;
  }

  std::vector<std::vector<std::uint32_t>> finish() {
    if (!open_.empty() || files_.empty()) close();
    return std::move(files_);
  }

 private:
  void close() {
    files_.push_back(std::move(open_));
    open_.clear();
    open_bytes_ = open_header_bytes_ = 0;
  }

  std::uint64_t limit_bytes_;
  std::vector<std::vector<std::uint32_t>> files_;
  std::vector<std::uint32_t> open_;
  std::uint64_t open_bytes_ = 0;  ///< at most limit_bytes_
  std::uint64_t open_header_bytes_ = 0;
};

std::string file_name(std::size_t number, std::size_t count) {
  if (count == 1) return "model.safetensors";
  const auto five_digits = [](std::size_t value) {
    const std::string text = std::to_string(value);
    return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
  };
  return "model-" + five_digits(number + 1) + "-of-" + five_digits(count) + ".safetensors";
}

std::vector<std::vector<std::uint32_t>> by_size(const Targets& targets, const LayoutOptions& options) {
  std::vector<std::vector<std::uint32_t>> blocks;
  std::unordered_map<std::uint32_t, std::size_t> place_of;
  for (std::uint32_t i = 0; i < targets.targets.size(); ++i) {
    const std::uint32_t block = options.block_by_target.empty() ? 0 : options.block_by_target.at(i);
    const auto [known, is_new] = block == 0 ? std::pair{place_of.end(), true} : place_of.try_emplace(block, blocks.size());
    if (is_new) {
      blocks.push_back({i});
    } else {
      blocks[known->second].push_back(i);
    }
  }
  Splitter splitter(options.max_shard_bytes);
  for (const std::vector<std::uint32_t>& block : blocks) splitter.add(block, targets);
  return splitter.finish();
}

std::vector<std::vector<std::uint32_t>> as_given(const std::vector<std::uint32_t>& file_by_target) {
  std::vector<std::vector<std::uint32_t>> files;
  for (std::uint32_t i = 0; i < file_by_target.size(); ++i) {
    if (files.size() <= file_by_target[i]) files.resize(file_by_target[i] + std::size_t{1});
    files[file_by_target[i]].push_back(i);
  }
  return files;
}

/// Persistent buffers of known modules: batch norms, and routers (where ERNIE's is a parameter).
bool is_buffer(std::string_view name) {
  constexpr std::array<std::string_view, 4> buffers{"e_score_correction_bias", "running_mean", "running_var", "num_batches_tracked"};
  if (name.ends_with("moe_statics.e_score_correction_bias")) return false;
  return std::ranges::find(buffers, name.substr(name.rfind('.') + 1)) != buffers.end();
}

class SafetensorsOutput final : public OutputFormat {
 public:
  [[nodiscard]] std::string_view name() const override { return "safetensors"; }
  [[nodiscard]] std::string_view description() const override {
    return "model.safetensors, or several files and an index, as transformers writes them";
  }

  [[nodiscard]] Layout lay_out(const Targets& targets, const LayoutOptions& options) const override {
    std::uint64_t total = 0;
    for (const Target& target : targets.targets) {
      check_target_can_be_saved(target);
      total += std::min(target_bytes(target), model_limit_bytes);
      if (total >= model_limit_bytes) throw too_large(target);
    }
    std::vector<std::vector<std::uint32_t>> members = options.file_by_target.empty() ? by_size(targets, options) : as_given(options.file_by_target);
    Layout layout;
    layout.placed.reserve(targets.targets.size());
    for (std::uint32_t file = 0; file < members.size(); ++file) {
      sort_as_saved(targets, members[file]);
      std::string header = safetensors_header(targets, members[file]);
      std::uint64_t position = header.size();
      for (const std::uint32_t target : members[file]) {
        const std::uint64_t size = target_bytes(targets.targets[target]);
        layout.placed.push_back({target, file, position, size});
        position += size;
      }
      layout.files.push_back({file_name(file, members.size()), std::move(header), position});
    }
    return layout;
  }

  // As json.dumps(index, indent=2, sort_keys=True) + "\n" in save_pretrained, where total_parameters leaves persistent buffers out.
  [[nodiscard]] std::vector<SmallFile> indexes(const Targets& targets, const Layout& layout) const override {
    if (layout.files.size() < 2) return {};
    std::uint64_t total_size = 0, total_parameters = 0;
    nlohmann::json weight_map = nlohmann::json::object();
    for (const PlacedTarget& placed : layout.placed) {
      const Target& target = targets.targets[placed.target];
      total_size += placed.size_bytes;
      if (!is_buffer(target.name)) total_parameters += volume(target.shape);
      weight_map[target.name] = layout.files[placed.file].name;
    }
    const nlohmann::json index{{"metadata", {{"total_parameters", total_parameters}, {"total_size", total_size}}},
                               {"weight_map", std::move(weight_map)}};
    return {{"model.safetensors.index.json", index.dump(2, ' ', true) + "\n"}};
  }
};

}  // namespace

const OutputFormat& safetensors_output() {
  static const SafetensorsOutput output;
  return output;
}

std::uint64_t target_bytes(const Target& target) {
  const auto bytes = checked_multiply(volume(target.shape), info(target.dtype).size_bytes);
  if (!bytes)
    throw Error(ErrorCode::bad_input, printable(target.name) + ": shape " + to_string(target.shape) + " has more than 2^64 bytes");
  return *bytes;
}

void sort_as_saved(const Targets& targets, std::vector<std::uint32_t>& members) {
  std::sort(members.begin(), members.end(), [&](std::uint32_t a, std::uint32_t b) {
    const Target &left = targets.targets[a], &right = targets.targets[b];
    if (left.dtype != right.dtype) return rank_of(left.dtype) > rank_of(right.dtype);
    return left.name < right.name;  // std::string compares as unsigned bytes
  });
}

std::string safetensors_header(const Targets& targets, const std::vector<std::uint32_t>& members) {
  std::string json(start_of_json);
  std::uint64_t position = 0;
  for (const std::uint32_t member : members) {
    const Target& target = targets.targets[member];
    const std::uint64_t end = position + target_bytes(target);
    json += ',';
    json += entry_of(target, position, end);
    position = end;
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string header(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) header[i] = static_cast<char>(static_cast<std::uint64_t>(json.size()) >> (8 * i) & 0xff);
  return header + json;
}

}  // namespace unshard
