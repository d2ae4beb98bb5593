#include "non_finite.h"

#include <algorithm>
#include <cstring>

#include "chunk_wire.h"
#include "copies.h"
#include "file_owners.h"
#include "stored_elements.h"
#include "unshard/agree.h"

namespace unshard {
namespace {

/// Floats of the IEEE kind: all exponent bits set is an infinity (mantissa 0) or a NaN.
template <class Bits>
NonFinite count_ieee(std::span<const std::byte> elements, Bits exponent, Bits mantissa) {
  NonFinite found;
  for (std::size_t at = 0; at + sizeof(Bits) <= elements.size(); at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, elements.data() + at, sizeof bits);
    const bool special = (bits & exponent) == exponent;
    const bool is_nan = special && (bits & mantissa) != 0;
    found.nan += is_nan ? 1 : 0;
    found.infinite += special && !is_nan ? 1 : 0;
  }
  return found;
}

/// Types without infinities: `nan` after `mask` is a NaN.
NonFinite count_code(std::span<const std::byte> elements, unsigned mask, unsigned nan) {
  const auto is_nan = [&](std::byte element) { return (std::to_integer<unsigned>(element) & mask) == nan; };
  return {static_cast<std::uint64_t>(std::ranges::count_if(elements, is_nan)), 0};
}

bool has_non_finite(DType dtype) {
  switch (dtype) {
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u8:
    case DType::boolean:
    case DType::u16:
    case DType::u32:
    case DType::u64:
    case DType::f4_x2:
      return false;
    default:
      return true;
  }
}

/// Dimensions whose data repeats are counted once and multiplied: a stride of 0 may stand for more elements than any file has.
std::uint64_t without_repeats(Chunk& chunk) {
  std::uint64_t times = 1;
  for (std::size_t d = 0; d < chunk.box.extent.size(); ++d) {
    if (chunk.strides[d] != 0 || chunk.box.extent[d] == 1) continue;
    times *= chunk.box.extent[d];
    chunk.box.extent[d] = 1;
  }
  return times;
}

/// Collective. The records of this rank's tensors, sent to the rank that reads their file; sorted by place.
std::vector<Chunk> records_to_read(Comm& comm, const Source& source, const Catalog& catalog) {
  std::vector<WireWriter> to_each(static_cast<std::size_t>(comm.size()));
  const std::vector<int> owners = collectively(comm, "check", [&] { return file_owners(comm, source); });
  for (const Chunk& chunk : catalog.chunks) {
    if (!has_non_finite(catalog.tensors[chunk.tensor].dtype)) continue;
    WireWriter& out = to_each[static_cast<std::size_t>(owners[chunk.file])];
    out.number(chunk.tensor);
    write_chunk(out, chunk);
  }
  std::vector<Bytes> sent;
  for (WireWriter& out : to_each) sent.push_back(out.take());
  std::vector<Chunk> mine;
  for (const Bytes& bytes : comm.all_to_all(std::move(sent))) {
    for (WireReader in(bytes); !in.at_end();) {
      const auto tensor = static_cast<TensorId>(in.number_up_to(UINT32_MAX));
      mine.push_back(read_chunk(in, tensor, catalog.tensors.at(tensor).shape.size()));
    }
  }
  std::ranges::sort(mine, {}, [](const Chunk& chunk) { return std::pair(chunk.file, chunk.position); });
  return mine;
}

}  // namespace

NonFinite count_non_finite(std::span<const std::byte> elements, DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::c128:
      return count_ieee<std::uint64_t>(elements, 0x7FF0000000000000U, 0x000FFFFFFFFFFFFFU);
    case DType::f32:
    case DType::c64:
      return count_ieee<std::uint32_t>(elements, 0x7F800000U, 0x007FFFFFU);
    case DType::f16:
    case DType::c32:
      return count_ieee<std::uint16_t>(elements, 0x7C00U, 0x03FFU);
    case DType::bf16:
      return count_ieee<std::uint16_t>(elements, 0x7F80U, 0x007FU);
    case DType::f8_e5m2:
      return count_ieee<std::uint8_t>(elements, 0x7CU, 0x03U);
    case DType::f8_e4m3:
      return count_code(elements, 0x7FU, 0x7FU);
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
      return count_code(elements, 0xFFU, 0x80U);
    case DType::f8_e8m0:
      return count_code(elements, 0xFFU, 0xFFU);
    default:
      return {};
  }
}

std::vector<NonFinite> count_non_finite(Comm& comm, FileCache& files, const Source& source, const Catalog& catalog) {
  std::vector<Chunk> records = records_to_read(comm, source, catalog);
  std::vector<NonFinite> found(catalog.tensors.size());
  collectively(comm, "check", [&] {
    for (Chunk& chunk : records) {
      const DType dtype = catalog.tensors[chunk.tensor].dtype;
      const std::uint64_t times = without_repeats(chunk);
      if (!is_readable(chunk, dtype)) continue;  // rows that overlap may claim more elements than could ever be read
      read_elements(*files.get(chunk.file), chunk, dtype, files.limits(), [&](std::span<std::byte> elements) {
        const NonFinite here = count_non_finite(elements, dtype);
        found[chunk.tensor].nan += times * here.nan;
        found[chunk.tensor].infinite += times * here.infinite;
      });
    }
    stop_if_signalled(files.limits());  // of a rank that had nothing to read
  });
  WireWriter mine;
  for (TensorId id = 0; id < found.size(); ++id) {
    if (found[id].nan == 0 && found[id].infinite == 0) continue;
    mine.number(id);
    mine.number(found[id].nan);
    mine.number(found[id].infinite);
  }
  std::vector<NonFinite> total(found.size());
  for (const Bytes& bytes : comm.gather_all(mine.take())) {
    for (WireReader in(bytes); !in.at_end();) {
      NonFinite& of = total.at(in.number());
      of.nan += in.number();
      of.infinite += in.number();
    }
  }
  return total;
}

}  // namespace unshard
