#include "command_identity.h"

#include <array>
#include <bit>
#include <nlohmann/json.hpp>

#include "hash.h"
#include "sha256.h"

namespace unshard {
namespace {

using Json = nlohmann::json;

// What an identity says, in this order.
constexpr std::array<std::string_view, 4> parts = {"what is read", "what the files hold (names, types, sizes)",
                                                   "what tensors are made from", "where the stages part"};
constexpr std::size_t part_digits = 16;

// Counts the changes of this program after which the same command may write other bytes: those of an earlier run are no part of it then.
constexpr int way_of_making = 2;

std::string identity_of(const Json& part) {
  return sha256_hex(part.dump(-1, ' ', false, Json::error_handler_t::replace)).substr(0, part_digits);
}

std::uint64_t hash_of(const Chunk& chunk, const Tree& tree, const Source& source) {
  Hash hash;
  hash.add_all(chunk.tensor, chunk.position - chunk.record_position, chunk.record_bytes, chunk.big_endian, chunk.has_crc);
  hash.add_list(chunk.box.offset);
  hash.add_list(chunk.box.extent);
  hash.add_list(chunk.strides);
  if (chunk.has_crc) {
    hash.add(chunk.record_crc);
  } else {
    const ShardFile& file = source.files.at(chunk.file);
    hash.add(file.label);
    const TreeEntry* entry = tree.find(file.path);
    hash.add_all(entry == nullptr ? 0 : entry->status.mtime_ns, chunk.position);
  }
  return hash.value();
}

void add(Hash& hash, const Term& term) {
  hash.add(term.source);
  hash.add_list(term.source_start);
  hash.add_list(term.target_start);
  for (const Axis& axis : term.axes) hash.add_all(axis.extent, axis.source_dim, axis.target_dim, axis.source_step, axis.target_step);
}

void add(Hash& hash, const Computation& computation) {
  for (const Addend& addend : computation.addends) {
    hash.add_all(std::bit_cast<std::uint64_t>(addend.scale), addend.first_row, addend.first_column, addend.left.rows, addend.left.columns);
    add(hash, addend.left.term);
    if (!addend.right) continue;
    hash.add_all(addend.right->rows, addend.right->columns);
    add(hash, addend.right->term);
  }
  hash.add(std::bit_cast<std::uint32_t>(computation.constant));
  for (const std::vector<float>* factors : {&computation.row_factors, &computation.column_factors}) {
    hash.add(std::uint64_t{factors->size()});
    for (const float factor : *factors) hash.add(std::bit_cast<std::uint32_t>(factor));
  }
}

std::uint64_t hash_of(const Target& target) {
  Hash hash;
  for (const Term& term : target.terms) add(hash, term);
  if (target.computation) add(hash, *target.computation);
  return hash.value();
}

}  // namespace

std::string command_identity(Comm& comm, const Tree& tree, const Source& source, const Catalog& catalog, const Targets& targets,
                             const Layout& layout, std::uint64_t stage_layers) {
  std::uint64_t stored = 0;  // a sum, because it depends on the number of ranks which of them has a chunk
  for (const Chunk& chunk : catalog.chunks) stored += hash_of(chunk, tree, source);
  Json input{{"stored", comm.reduce_all(stored, Reduction::sum)}}, output, terms;
  for (const ShardFile& file : source.files) input["files"].push_back({file.label, file.size_bytes});
  for (const TensorRow& row : catalog.tensors) input["tensors"].push_back({row.name, info(row.dtype).name});
  for (const OutputFile& file : layout.files) output.push_back({file.name, sha256_hex(file.header), file.size_bytes});
  terms.push_back(way_of_making);
  for (const Target& target : targets.targets) terms.push_back(hash_of(target));
  return identity_of(input) + identity_of(output) + identity_of(terms) + identity_of(Json(stage_layers));
}

std::string difference_of_commands(std::string_view one, std::string_view other) {
  if (one.size() != part_digits * parts.size() || other.size() != one.size()) return "it is of another version of this program";
  std::string text;
  std::size_t differences = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (one.substr(i * part_digits, part_digits) == other.substr(i * part_digits, part_digits)) continue;
    text += (differences++ == 0 ? "" : ", ") + std::string(parts[i]);
  }
  return text + (differences == 1 ? " differs" : " differ");
}

}  // namespace unshard
