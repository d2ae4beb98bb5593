// Megatron's format "torch": one torch.save dictionary for each model-parallel rank (megatron/training/checkpointing.py), with the training
// arguments (`args`) and the state dict of the rank's model chunk (`model`, or `model0` … with virtual pipeline stages); and verl's older
// one, a list of state dicts. Tensors are the rank's own slices, layers and experts are numbered from 0 on each rank. Where they belong
// is only known from all files together, so headers are read first and pieces placed afterwards (megatron_place.h).
#include "formats/megatron.h"

#include <algorithm>
#include <charconv>

#include "formats/megatron_args.h"
#include "formats/megatron_files.h"
#include "formats/megatron_place.h"
#include "formats/torch_pieces.h"
#include "formats/torch_rebuild.h"
#include "formats/torch_walk.h"
#include "side_state.h"

namespace unshard {
namespace {

constexpr std::uint64_t most_chunks = 1024;

std::optional<std::uint64_t> number_in(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number >= most_chunks) return std::nullopt;
  return number;
}

/// The model chunk whose state dict has this key in the file's root; none: another part of the file (the optimizer …).
std::optional<std::uint64_t> chunk_of_key(std::string_view key, bool root_is_list) {
  if (root_is_list) return number_in(key);
  constexpr std::string_view name = "model";
  if (!key.starts_with(name)) return std::nullopt;
  return key.size() == name.size() ? std::optional<std::uint64_t>(0) : number_in(key.substr(name.size()));
}

/// How many model chunks the root holds; a chunk may be empty.
std::uint64_t chunks_in(const pickle::Node& root, bool root_is_list) {
  if (root_is_list) return std::min<std::uint64_t>(root.elements().size(), most_chunks);
  std::uint64_t chunks = 0;
  const auto pairs = root.pairs();
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const auto chunk = pairs[i]->is_text() ? chunk_of_key(pairs[i]->view(), false) : std::nullopt;
    if (chunk) chunks = std::max(chunks, *chunk + 1);
  }
  return chunks;
}

/// Without what data parallelism puts in front: the layer's number must be found.
std::string without_module(std::string name) {
  constexpr std::string_view prefix = "module.";
  while (name.starts_with(prefix)) name.erase(0, prefix.size());
  return name;
}

Piece piece_of(const TorchEntry& entry, std::uint64_t chunk_number, const std::string& name) {
  Piece piece = whole_piece(entry);
  piece.name = std::to_string(chunk_number) + ":" + name;
  for (Chunk& chunk : piece.chunks) chunk.plain = true;
  return piece;
}

/// The number behind `mark` in `name`.
std::optional<std::uint64_t> number_behind(std::string_view name, std::string_view mark) {
  const std::size_t at = name.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  name.remove_prefix(at + mark.size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc{} || end == name.data() || number >= (1U << 24U)) return std::nullopt;
  return number;
}

/// What a tensor's name tells of the file.
void note_name(MegatronFile& about, std::uint64_t chunk, std::string_view name, const Shape& shape) {
  if (about.chunk_layers.size() <= chunk) about.chunk_layers.resize(chunk + 1, 0);
  for (const std::string_view stack : {"decoder.layers.", "encoder.layers.", "transformer.layers."}) {
    const std::size_t at = name.find(stack);
    if (at == std::string_view::npos || (at > 0 && name.substr(0, at) != "language_model.")) continue;
    if (const auto layer = number_behind(name, stack)) about.chunk_layers[chunk] = std::max(about.chunk_layers[chunk], *layer + 1);
  }
  if (name.ends_with("word_embeddings.weight")) about.has_embedding = true;
  if (name.ends_with(".mlp.router.weight") && !shape.empty()) about.routed_experts = shape[0];
  for (const std::string_view mark : {".mlp.experts.local_experts.", ".mlp.experts.linear_fc1.weight"}) {
    if (const auto expert = number_behind(name, mark)) about.local_experts = std::max(about.local_experts, *expert + 1);
  }
}

/// Names of before Megatron-core.
bool is_old_name(std::string_view name) {
  return name.find("language_model.encoder.") != std::string_view::npos ||
         name.find("language_model.transformer.") != std::string_view::npos;
}

/// Before checkpoint_version 2.0 the rows of fused q, k, v lay in another order.
void check_version(const pickle::Node& root, bool old_names, const std::string& label) {
  const pickle::Node* version = root.find("checkpoint_version");
  const bool is_old = version == nullptr ? old_names : version->kind == pickle::Kind::real && version->real < 2.0;
  if (!is_old && !(version != nullptr && version->kind == pickle::Kind::integer && version->integer < 2)) return;
  throw Error(ErrorCode::unsupported,
              label + ": checkpoint_version is " + (version == nullptr ? "missing, which means 0" : pickle::describe(*version)) +
                  ": before 2.0 the rows of query_key_value lay in another order; load and save it with a newer Megatron-LM");
}

class MegatronFormat final : public CheckpointFormat {
 public:
  [[nodiscard]] std::string_view name() const override { return "megatron"; }
  [[nodiscard]] std::string_view description() const override {
    return "Megatron checkpoint (mp_rank_<TT>[_<PPP>][_<EEE>]/model_optim_rng.pt)";
  }

  [[nodiscard]] bool recognises(const Tree& tree, const std::string& folder) const override { return holds_megatron_files(tree, folder); }

  [[nodiscard]] Source describe(const Tree& tree, const std::vector<std::string>& folders) const override {
    return describe_megatron_files(tree, folders);
  }

  [[nodiscard]] ShardContents read_headers(const Source& source, FileId file, File& open_file) const override {
    const std::string label = printable(source.files.at(file).label, 4096);
    const PickledFile pickled = read_pickled_file(open_file, label);
    const pickle::Node& root = pickled.tree->root();
    const bool root_is_list = root.kind == pickle::Kind::list;
    TorchContents contents = walk_contents(open_file, pickled, label, std::nullopt);
    ShardContents shard;
    MegatronFile about;
    about.args = read_megatron_args(root, label);
    bool old_names = false;
    for (const TorchEntry& entry : contents.entries) {
      const auto chunk = entry.keys.empty() ? std::nullopt : chunk_of_key(entry.keys.front(), root_is_list);
      if (!chunk || entry.keys.size() < 2) continue;
      const std::string name = without_module(entry.path.substr(entry.keys.front().size() + 1));
      if (is_side_state(name)) continue;
      if (entry.kind != TorchEntry::Kind::tensor) {
        shard.findings.push_back({Severity::error, name, "is no plain tensor, which no Megatron rank writes", ErrorCode::unsupported});
        continue;
      }
      old_names = old_names || is_old_name(name);
      note_name(about, *chunk, name, entry.tensor.shape);
      shard.pieces.push_back(piece_of(entry, *chunk, name));
    }
    about.chunk_layers.resize(chunks_in(root, root_is_list), 0);
    if (about.chunk_layers.empty()) throw Error(ErrorCode::bad_input, label + ": has no model (a key `model`, `model0` … with tensors)");
    check_version(root, old_names, label);
    add_unreadable(contents, root_is_list, shard);
    for (ObjectNote& object : contents.objects) {
      if (!is_side_state(object.key)) shard.objects.push_back(std::move(object));
    }
    shard.about = encode(about);
    return shard;
  }

  [[nodiscard]] bool needs_all_files() const override { return true; }
  void place(const Source& source, const std::vector<std::vector<std::byte>>& about,
             std::vector<std::pair<FileId, ShardContents>>& files) const override {
    place_megatron_pieces(source, about, files);
  }

 private:
  static void add_unreadable(const TorchContents& contents, bool root_is_list, ShardContents& shard) {
    for (const auto& [path, reason] : contents.unreadable) {
      const std::string_view key = std::string_view(path).substr(0, path.find('.'));
      if (chunk_of_key(key, root_is_list) && !is_side_state(path))
        shard.findings.push_back({Severity::error, path, reason, ErrorCode::bad_input});
    }
  }
};

}  // namespace

const CheckpointFormat& megatron_format() {
  static const MegatronFormat format;
  return format;
}

}  // namespace unshard
