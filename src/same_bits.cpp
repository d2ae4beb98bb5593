// Whether two tensors are equal, as tied embeddings should be.
#include <algorithm>
#include <optional>

#include "chunk_wire.h"
#include "copies.h"
#include "piece_digests.h"
#include "unshard/agree.h"
#include "unshard/catalog.h"
#include "unshard/file_cache.h"

namespace unshard {
namespace {

Bytes encode_chunks(const Catalog& catalog, TensorId tensor) {
  WireWriter out;
  for (const Chunk& chunk : catalog.chunks) {
    if (chunk.tensor == tensor) write_chunk(out, chunk);
  }
  return out.take();
}

std::vector<Chunk> decode_chunks(const Bytes& bytes, const Catalog& catalog, TensorId tensor) {
  std::vector<Chunk> chunks;
  for (WireReader in(bytes); !in.at_end();) chunks.push_back(read_chunk(in, tensor, catalog.tensors[tensor].shape.size()));
  return chunks;
}

/// The part of `chunk` inside `box`.
Chunk clipped(const Chunk& chunk, const Box& box, DType dtype) {
  Chunk part = chunk;
  for (std::size_t d = 0; d < box.offset.size(); ++d) {
    part.position += (box.offset[d] - chunk.box.offset[d]) * chunk.strides[d] * info(dtype).size_bytes;
  }
  part.box = box;
  return part;
}

/// Calls `pair` for the chunks of `a` and `b` that share elements. Both are sorted by box.
template <class Pair>
void for_each_pair(const std::vector<Chunk>& a, const std::vector<Chunk>& b, Pair&& pair) {
  if (a.empty() || b.empty()) return;
  if (a.front().box.offset.empty()) return pair(a.front(), b.front(), a.front().box);
  const auto end_of = [](const Chunk& chunk) { return chunk.box.offset[0] + chunk.box.extent[0]; };
  std::vector<std::uint64_t> reached;  // of b: how far the first boxes reach along dimension 0
  for (const Chunk& chunk : b) reached.push_back(std::max(reached.empty() ? 0 : reached.back(), end_of(chunk)));
  for (const Chunk& chunk : a) {
    const auto first = std::upper_bound(reached.begin(), reached.end(), chunk.box.offset[0]) - reached.begin();
    for (auto other = b.begin() + first; other != b.end() && other->box.offset[0] < end_of(chunk); ++other) {
      if (const auto common = intersect(chunk.box, other->box)) pair(chunk, *other, *common);
    }
  }
}

/// What decides about two tensors: a verdict at once, or pairs of jobs whose results must be equal.
struct Question {
  std::optional<bool> verdict;
  std::vector<PieceJob> jobs;
};

Question ask(const Catalog& catalog, const std::vector<Chunk>& a, const std::vector<Chunk>& b, TensorId id_a, TensorId id_b,
             const Shape& shape, DType dtype) {
  const DType type_a = catalog.tensors[id_a].dtype, type_b = catalog.tensors[id_b].dtype;
  const auto type_after = [&](DType type) { return info(type).castable && info(dtype).castable ? dtype : type; };
  const DType to_a = type_after(type_a), to_b = type_after(type_b);
  Question question;
  const Box asked = whole(shape);
  if (!inside(asked, catalog.tensors[id_a].shape) || !inside(asked, catalog.tensors[id_b].shape) || to_a != to_b) question.verdict = false;
  if (question.verdict) return question;
  const bool moved_only = type_a == to_a && type_b == to_b;  // no cast that could make different bits equal
  bool different = false;
  for_each_pair(a, b, [&](const Chunk& x, const Chunk& y, const Box& common) {
    const auto box = intersect(common, asked);
    if (different || !box) return;
    if (type_a == type_b && x.box == y.box) {
      if (aliased(x, y)) return;
      if (x.has_crc && y.has_crc && same_geometry(x, y)) {
        if (x.record_crc == y.record_crc) return;
        different = moved_only && *box == x.box && is_whole_record(x, type_a);
      }
    }
    const Chunk part_x = clipped(x, *box, type_a), part_y = clipped(y, *box, type_b);
    different = different || !is_readable(part_x, type_a) || !is_readable(part_y, type_b);
    question.jobs.push_back({PieceJob::Kind::elements, part_x, type_a, to_a});
    question.jobs.push_back({PieceJob::Kind::elements, part_y, type_b, to_b});
  });
  if (different) question.verdict = false;
  if (question.verdict) question.jobs.clear();
  return question;
}

bool all_equal(const std::vector<PieceDigest>& results) {
  for (std::size_t i = 0; i + 1 < results.size(); i += 2) {
    for (const PieceDigest* result : {&results[i], &results[i + 1]}) {
      if (!result->failure.empty()) throw Error(result->code, result->failure);
    }
    if (results[i].digest != results[i + 1].digest) return false;
  }
  return true;
}

}  // namespace

bool same_bits(Comm& comm, FileCache& files, const Catalog& catalog, TensorId a, TensorId b, const Shape& shape, DType dtype) {
  const int judge = home_of(a, catalog.tensors.size(), comm.size());
  const auto mine = collectively(comm, "compare", [&] { return encode_chunks(catalog, b); });
  const std::vector<Bytes> sent = comm.gather(mine, judge);
  const Question question = collectively(comm, "compare", [&] {
    if (comm.rank() != judge) return Question{};
    const int other = home_of(b, catalog.tensors.size(), comm.size());
    const auto chunks_a = decode_chunks(encode_chunks(catalog, a), catalog, a);
    return ask(catalog, chunks_a, decode_chunks(sent[static_cast<std::size_t>(other)], catalog, b), a, b, shape, dtype);
  });
  const auto results = digest_pieces(comm, files, files.source(), question.jobs);
  const bool equal = collectively(comm, "compare", [&] { return question.verdict.value_or(true) && all_equal(results); });
  return comm.reduce_all(equal ? 1 : 0, Reduction::min) == 1;
}

}  // namespace unshard
