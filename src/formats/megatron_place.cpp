#include "formats/megatron_place.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <sstream>

#include "checked_math.h"
#include "families/families.h"
#include "formats/megatron_experts.h"
#include "formats/megatron_grid.h"
#include "formats/megatron_layers.h"
#include "names.h"
#include "unshard/error.h"
#include "unshard/mapping.h"

namespace unshard {
namespace {

/// How tensor-parallel ranks share a tensor.
struct Sharing {
  enum class Kind : std::uint8_t { along_0, along_1, replicated, vocabulary, narrow, rows, parts, unknown } kind = Kind::unknown;
  std::uint64_t rows = 0;                                    ///< of the whole tensor
  std::vector<std::pair<std::string, std::uint64_t>> parts;  ///< name and rows in the whole of what lies one behind the other on each rank
};
using Kind = Sharing::Kind;

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

[[noreturn]] void refuse_sharing(const std::string& text) {
  throw Error(ErrorCode::bad_input, "placements: '" + printable(text) +
                                        "' is none of 0, 1, replicated, vocabulary, narrow, rows <number>, parts <name>=<number> …");
}

std::uint64_t whole_number(std::string_view digits, const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) refuse_sharing(text);
  return value;
}

Sharing sharing_of(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, Kind>, 5> names{{{"0", Kind::along_0},
                                                                    {"1", Kind::along_1},
                                                                    {"replicated", Kind::replicated},
                                                                    {"vocabulary", Kind::vocabulary},
                                                                    {"narrow", Kind::narrow}}};
  for (const auto& [name, kind] : names) {
    if (text == name) return {kind, 0, {}};
  }
  const std::vector<std::string> words = words_of(text);
  if (words.size() == 2 && words[0] == "rows") return {Kind::rows, whole_number(words[1], text), {}};
  if (words.size() < 2 || words[0] != "parts") refuse_sharing(text);
  Sharing sharing{Kind::parts, 0, {}};
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    if (equals == 0 || equals == std::string::npos) refuse_sharing(text);
    sharing.parts.emplace_back(words[i].substr(0, equals), whole_number(std::string_view(words[i]).substr(equals + 1), text));
  }
  return sharing;
}

/// `name` with the number of its decoder layer shifted by `first`.
std::string with_global_layer(std::string_view name, std::uint64_t first) {
  for (const std::string_view stack : layer_stacks) {
    const std::size_t at = name.find(stack);
    if (at == std::string_view::npos || (at > 0 && name.substr(0, at) != "language_model.")) continue;
    std::string_view rest = name.substr(at + stack.size());
    const auto layer = take_number(rest);
    if (!layer) continue;
    return std::string(name.substr(0, at + stack.size())) + std::to_string(*layer + first) + std::string(rest);
  }
  return std::string(name);
}

/// How tensor-parallel ranks share the matrices beside a layer that they share as `base`. Megatron-Bridge makes both of Megatron's parallel
/// layers (src/megatron/bridge/peft/utils.py, ParallelLinearAdapter): A is cut along its inputs beside a layer that is, else along its
/// rank, and B always along its rows. mcore-bridge cuts one of the two (src/mcore_bridge/tuners/lora.py, LoraParallelLinear).
Kind sharing_beside(Kind base, const LoraMatrix& matrix) {
  if (matrix.is_a && base == Kind::along_1) return Kind::along_1;
  if (matrix.of_bridge) return Kind::along_0;
  return !matrix.is_a && base == Kind::along_0 ? Kind::along_0 : Kind::replicated;
}

class Placer {
 public:
  Placer(const Source& source, const MegatronGrid& grid) : grid_(grid), help_(source.names), base_(family_of("", ModelConfig())) {
    placements_ = help_.placements;
    placements_.insert(placements_.end(), base_.placements.begin(), base_.placements.end());
  }

  void run(FileId file, ShardContents& contents) {
    place_ = grid_.places[file];
    local_.clear();
    std::vector<Piece> pieces = std::move(contents.pieces);
    contents.pieces.clear();
    for (Piece& piece : pieces) {
      piece.name = global_name(piece.name);
      local_.emplace(canonical(piece.name), piece.shape);
    }
    for (Piece& piece : pieces) {
      const std::string name = piece.name;
      try {
        add(std::move(piece), contents.pieces);
      } catch (const Error& error) {
        contents.findings.push_back({Severity::error, name, error.what(), error.code()});
      }
    }
  }

 private:
  /// "<chunk>:<name>", the layer's number in it made global.
  [[nodiscard]] std::string global_name(std::string_view name) const {
    const std::size_t colon = name.find(':');
    std::string_view digits = name.substr(0, colon);
    const std::uint64_t chunk = take_number(digits).value_or(0);
    return with_global_layer(name.substr(colon + 1), grid_.layers.at(chunk).at(place_.pipeline).first);
  }

  [[nodiscard]] std::string canonical(const std::string& name) const {
    std::string plain = without_peft(without_wrappers(name));
    if (const std::size_t saved = plain.find(".modules_to_save."); saved != std::string::npos) {
      const std::size_t end = plain.find('.', saved + std::string_view(".modules_to_save.").size());
      if (end != std::string::npos) plain.erase(saved, end - saved);
    }
    if (!help_.renames.empty()) plain = with_parts_replaced(plain, help_.renames);
    return megatron_name(
        base_, [](const Captures&) -> std::unique_ptr<Names> { return nullptr; }, std::move(plain));
  }

  void add(Piece piece, std::vector<Piece>& to) {
    const std::string name = canonical(piece.name);
    if (const auto matrix = lora_matrix(name)) return add_matrix(std::move(piece), *matrix, to);
    if (const auto expert = expert_name(name)) return add_expert(std::move(piece), *expert, name, to);
    const Sharing sharing = sharing_for(name);
    if (sharing.kind == Kind::parts) return add_parts(piece, sharing, to);
    if (sharing.kind == Kind::rows) {
      widen_to_rows(piece, sharing.rows);
    } else {
      const Kind kind = settled(sharing.kind, name, piece.shape);
      if (kind == Kind::unknown && grid_.tensor > 1) {
        stack(piece, grid_.tensor, place_.tensor);
      } else if (kind == Kind::along_0 || kind == Kind::along_1) {
        widen(piece, kind == Kind::along_0 ? 0 : 1, grid_.tensor, place_.tensor);
      }
    }
    to.push_back(std::move(piece));
  }

  /// A matrix of a LoRA adapter.
  void add_matrix(Piece piece, const LoraMatrix& matrix, std::vector<Piece>& to) const {
    const std::string base = std::string(matrix.module) + "." + std::string(matrix.rest);
    const auto expert = expert_name(base);
    const Kind sharing = sharing_beside(expert ? sharing_of_expert(*expert) : sharing_of_base(base), matrix);
    std::size_t in_front = 0;
    if (expert) {
      if (!expert->all) stack_expert(piece, *expert);
      if (piece.shape.size() == 3) {  // else one for all experts, which every rank has
        widen(piece, 0, grid_.expert, place_.expert);
        in_front = 1;
      }
      const std::string weight = "weight";
      piece.name = expert->name.substr(0, expert->name.size() - weight.size()) + std::string(matrix.matrix) + "." + weight;
      for (Chunk& chunk : piece.chunks) chunk.plain = false;
    }
    if (sharing == Kind::along_0 || sharing == Kind::along_1) {
      widen(piece, in_front + (sharing == Kind::along_0 ? 0 : 1), expert ? grid_.expert_tensor : grid_.tensor,
            expert ? place_.expert_tensor : place_.tensor);
    }
    to.push_back(std::move(piece));
  }

  [[nodiscard]] static Kind sharing_of_expert(const ExpertName& expert) {
    return expert.name.find(".linear_fc1.") != std::string::npos ? Kind::along_0 : Kind::along_1;
  }

  /// How ranks share the weight that an adapter is beside.
  [[nodiscard]] Kind sharing_of_base(const std::string& base) const {
    if (grid_.tensor == 1) return Kind::replicated;
    const Kind stated = sharing_for(base).kind;
    const auto shape = local_.find(base);
    const bool needs_shape = stated == Kind::vocabulary || stated == Kind::narrow;
    if (stated == Kind::unknown || stated == Kind::parts || stated == Kind::rows || (needs_shape && shape == local_.end())) {
      throw Error(ErrorCode::unsupported, "nothing says how tensor-parallel ranks share the layer that it adapts, " + printable(base) +
                                              "; say it in the placements of a --custom-mapping");
    }
    return needs_shape ? settled(stated, base, shape->second) : stated;
  }

  [[nodiscard]] Sharing sharing_for(const std::string& name) const {
    for (const auto& [pattern, how] : placements_) {
      if (glob_matches(pattern, name)) return sharing_of(how);
    }
    return {};
  }

  /// What depends on the shape.
  [[nodiscard]] Kind settled(Kind kind, const std::string& name, const Shape& shape) const {
    if (grid_.tensor == 1) return Kind::replicated;
    if (kind == Kind::vocabulary) {  // a value head has a few rows, on every rank
      const auto rows = shape.empty() ? std::nullopt : checked_multiply(shape[0], grid_.tensor);
      const bool is_cut = grid_.padded_vocabulary ? rows == grid_.padded_vocabulary : !shape.empty() && shape[0] > 1;
      return is_cut ? Kind::along_0 : Kind::replicated;
    }
    if (kind == Kind::narrow) return narrow_sharing(name, shape);
    return kind;
  }

  /// A tensor of `rows` rows, of which each rank has all, or its share; where there are fewer shares than ranks, neighbours have the same.
  void widen_to_rows(Piece& piece, std::uint64_t rows) const {
    const std::uint64_t local = piece.shape.empty() ? 0 : piece.shape[0];
    const std::uint64_t shares = local == 0 || rows % local != 0 ? 0 : rows / local;
    if (shares == 0 || grid_.tensor % shares != 0) {
      throw Error(ErrorCode::bad_input, "shape " + to_string(piece.shape) + " on " + std::to_string(grid_.tensor) +
                                            " tensor-parallel ranks is no part of " + std::to_string(rows) + " rows");
    }
    widen(piece, 0, shares, place_.tensor / (grid_.tensor / shares));
  }

  /// Each part becomes a tensor of its own, `<name>.<part>` as torch_dist calls it, cut along dimension 0.
  void add_parts(const Piece& piece, const Sharing& sharing, std::vector<Piece>& to) const {
    std::uint64_t first = 0;
    for (const auto& [name, rows] : sharing.parts) {
      if (piece.shape.empty() || rows % grid_.tensor != 0 || rows / grid_.tensor > piece.shape[0] - first) misfit_parts(piece, sharing);
      const std::uint64_t local = rows / grid_.tensor;
      Piece part = piece;
      part.name += "." + name;
      part.shape[0] = local;
      if (local == 0) part.chunks.clear();
      for (Chunk& chunk : part.chunks) {
        chunk.box = whole(part.shape);
        chunk.position += first * chunk.strides[0] * info(piece.dtype).size_bytes;
        chunk.plain = false;
      }
      first += local;
      widen(part, 0, grid_.tensor, place_.tensor);
      to.push_back(std::move(part));
    }
    if (first != piece.shape[0]) misfit_parts(piece, sharing);
  }
  [[noreturn]] void misfit_parts(const Piece& piece, const Sharing& sharing) const {
    std::string parts;
    for (const auto& [name, rows] : sharing.parts) parts += (parts.empty() ? "" : ", ") + name + " " + std::to_string(rows);
    throw Error(ErrorCode::bad_input, "shape " + to_string(piece.shape) + " on " + std::to_string(grid_.tensor) +
                                          " tensor-parallel ranks does not hold what config.json implies (rows of all ranks: " + parts +
                                          ")");
  }

  /// The down projections of latent attention are whole on every rank, or cut, by version: whole ones have all rows of the rank that the
  /// columns of the up projection tell (and of the rotary part beside it).
  [[nodiscard]] Kind narrow_sharing(const std::string& name, const Shape& shape) const {
    const bool is_query = name.ends_with("linear_q_down_proj.weight");
    const std::size_t dot = name.rfind('.', name.size() - std::string_view("weight").size() - 2);
    const auto up = local_.find(name.substr(0, dot + 1) + (is_query ? "linear_q_up_proj.weight" : "linear_kv_up_proj.weight"));
    if (up == local_.end() || up->second.size() != 2 || shape.size() != 2)
      throw Error(ErrorCode::bad_input, "its up projection is missing, so whether it is cut can't be told");
    const std::uint64_t rank = up->second[1];
    if (is_query ? shape[0] == rank : shape[0] > rank) return Kind::replicated;
    if (is_query && checked_multiply(shape[0], grid_.tensor) != rank)
      throw Error(ErrorCode::bad_input, "shape " + to_string(shape) + " on " + std::to_string(grid_.tensor) +
                                            " tensor-parallel ranks does not fit the up projection's " + to_string(up->second));
    return Kind::along_0;
  }

  /// The piece becomes part `index` of `count` along dimension `dim`.
  static void widen(Piece& piece, std::size_t dim, std::uint64_t count, std::uint64_t index) {
    if (count == 1) return;
    if (dim >= piece.shape.size())
      throw Error(ErrorCode::bad_input, "shape " + to_string(piece.shape) + " can't be cut along dimension " + std::to_string(dim));
    const std::uint64_t local = piece.shape[dim];
    const auto whole = checked_multiply(local, count);
    if (!whole) throw Error(ErrorCode::bad_input, "would be too large");
    piece.shape[dim] = *whole;
    for (Chunk& chunk : piece.chunks) {
      chunk.box.offset[dim] += index * local;
      chunk.plain = false;
    }
  }

  static Shape with_front(const Shape& shape, std::uint64_t value) {
    if (shape.size() == max_rank) throw Error(ErrorCode::unsupported, "has too many dimensions");
    Shape longer{value};
    for (const std::uint64_t extent : shape) longer.push_back(extent);
    return longer;
  }

  /// The piece becomes entry `index` of `count` along a new first dimension.
  static void stack(Piece& piece, std::uint64_t count, std::uint64_t index) {
    piece.shape = with_front(piece.shape, count);
    for (Chunk& chunk : piece.chunks) {
      chunk.box = {with_front(chunk.box.offset, index), with_front(chunk.box.extent, 1)};
      chunk.strides = with_front(chunk.strides, 1);
      chunk.plain = false;
    }
  }

  void stack_expert(Piece& piece, const ExpertName& expert) const {
    const std::uint64_t here = grid_.experts / grid_.expert;
    if (expert.first >= here) {
      throw Error(ErrorCode::bad_input, "is expert " + std::to_string(expert.first) + " of only " + std::to_string(here) + " on its rank");
    }
    stack(piece, here, expert.first);
  }

  /// A tensor that holds all experts of the rank, as [experts, out, in].
  [[nodiscard]] Piece as_matrices(Piece piece, const ExpertName& expert, std::uint64_t here) const {
    if (piece.shape.size() == 3 && expert.layout == ExpertName::Layout::matrices) {
      if (piece.shape[0] != here) misfit(piece, here);
      return piece;
    }
    if (piece.shape.size() != 2) misfit(piece, here);
    const bool by_columns = expert.layout == ExpertName::Layout::columns;
    const std::uint64_t packed = piece.shape[by_columns ? 1 : 0], other = piece.shape[by_columns ? 0 : 1];
    if (here == 0 || packed % here != 0) misfit(piece, here);
    const std::uint64_t each = packed / here;
    for (Chunk& chunk : piece.chunks) {
      if (chunk.strides[1] != 1 || chunk.strides[0] != piece.shape[1])
        throw Error(ErrorCode::unsupported, "is not contiguous, so its experts can't be told apart");
      const bool is_plain = expert.layout == ExpertName::Layout::matrices;
      chunk.box = whole(is_plain ? Shape{here, each, other} : by_columns ? Shape{here, each, other} : Shape{here, other, each});
      chunk.strides = is_plain ? Shape{each * other, other, 1} : by_columns ? Shape{each * other, 1, each} : Shape{each * other, 1, other};
    }
    const bool is_rows = expert.layout == ExpertName::Layout::rows;
    piece.shape = is_rows ? Shape{here, other, each} : Shape{here, each, other};
    return piece;
  }
  [[noreturn]] static void misfit(const Piece& piece, std::uint64_t here) {
    throw Error(ErrorCode::bad_input, "shape " + to_string(piece.shape) + " does not hold " + std::to_string(here) + " experts");
  }

  void add_expert(Piece piece, const ExpertName& expert, const std::string& name, std::vector<Piece>& to) {
    const std::uint64_t here = grid_.experts / grid_.expert;
    if (expert.all && !name.ends_with("bias")) {
      piece = as_matrices(std::move(piece), expert, here);
    } else if (expert.all) {
      if (piece.shape.size() != 2 || piece.shape[0] != here) misfit(piece, here);
    } else {
      stack_expert(piece, expert);
    }
    widen(piece, 0, grid_.expert, place_.expert);
    const bool is_first = expert.name.find(".linear_fc1.") != std::string::npos, is_bias = expert.name.ends_with(".bias");
    if (!is_bias || is_first) widen(piece, is_first ? 1 : 2, grid_.expert_tensor, place_.expert_tensor);
    for (Chunk& chunk : piece.chunks) chunk.plain = false;
    piece.name = expert.name;
    to.push_back(std::move(piece));
  }

  const MegatronGrid& grid_;
  const NameHelp& help_;
  Family base_;
  std::vector<std::pair<std::string, std::string>> placements_;
  MegatronPlace place_;
  std::map<std::string, Shape, std::less<>> local_;  ///< the file's own shapes
};

}  // namespace

void place_megatron_pieces(const Source& source, const std::vector<std::vector<std::byte>>& about,
                           std::vector<std::pair<FileId, ShardContents>>& files) {
  if (files.empty()) return;
  const MegatronGrid grid = make_megatron_grid(source, about);
  Placer placer(source, grid);
  for (auto& [file, contents] : files) placer.run(file, contents);
  const auto readable = std::find_if(about.begin(), about.end(), [](const auto& bytes) { return !bytes.empty(); });
  if (files.front().first != static_cast<FileId>(readable - about.begin())) return;  // every rank finds the same; it is said once
  ShardContents& first = files.front().second;
  first.facts = grid.facts();
  first.findings.insert(first.findings.end(), grid.findings.begin(), grid.findings.end());
}

}  // namespace unshard
