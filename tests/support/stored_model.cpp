#include "support/stored_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace unshard::test {
namespace {

template <class Value>
std::string bits_of(Value value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string f16_of(std::uint64_t number) {
  if (number == 0) return bits_of(std::uint16_t{0});
  int exponent = 0;
  const double fraction = std::frexp(static_cast<double>(number), &exponent);  // in [0.5, 1)
  const auto mantissa = static_cast<std::uint16_t>((fraction * 2 - 1) * 1024);
  return bits_of(static_cast<std::uint16_t>((exponent - 1 + 15) << 10 | mantissa));
}

/// Calls `visit(element, index)` for each index below `extent`, in row-major order.
template <class Visit>
void for_each_index(const Shape& extent, const Visit& visit) {
  const std::uint64_t count = volume(extent);
  Shape index = Shape::filled(extent.size(), 0);
  for (std::uint64_t i = 0; i < count; ++i) {
    visit(i, index);
    for (std::size_t d = extent.size(); d-- > 0;) {
      if (++index[d] < extent[d]) break;
      index[d] = 0;
    }
  }
}

std::uint64_t linear(const Shape& index, const Shape& shape) {
  std::uint64_t element = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) element = element * shape[d] + index[d];
  return element;
}

std::string reversed_units(std::string element, DType dtype) {
  const std::size_t unit = info(dtype).swap_bytes;
  for (std::size_t at = 0; at < element.size(); at += unit) std::reverse(element.begin() + at, element.begin() + at + unit);
  return element;
}

}  // namespace

std::string element_of(std::uint64_t number, DType dtype) {
  if (dtype == DType::f64) return bits_of(static_cast<double>(number));
  if (dtype == DType::f32) return bits_of(static_cast<float>(number));
  if (dtype == DType::bf16) return bits_of(static_cast<float>(number)).substr(2);
  if (dtype == DType::f16) return f16_of(number);
  std::string bytes(info(dtype).size_bytes, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(number + i * 37);
  return bytes;
}

StoredModel::StoredModel(const std::vector<std::string>& files) : contents(files.size()) {
  source.format = "test";
  for (const std::string& file : files) {
    ShardFile& shard = source.files.emplace_back();
    shard.path = "/in/" + file;
    shard.label = file;
    shard.nodes = {0};
  }
}

TensorId StoredModel::add(DType dtype, const Shape& shape) {
  tensors.push_back({"tensor" + std::to_string(tensors.size()), dtype, shape, 0});
  return static_cast<TensorId>(tensors.size() - 1);
}

void StoredModel::store(TensorId tensor, const Box& box, FileId file, const StorageOrder& how) {
  const TensorRow& row = tensors[tensor];
  const std::size_t rank = row.shape.size(), size = info(row.dtype).size_bytes;
  std::string& content = contents[file];
  content += std::string(1 + content.size() % 13, '#');
  Chunk chunk;
  chunk.tensor = tensor;
  chunk.file = file;
  chunk.box = box;
  chunk.position = content.size();
  chunk.big_endian = how.big_endian;
  chunk.strides = Shape::filled(rank, 0);
  std::uint64_t stride = 1;
  for (std::size_t k = rank; k-- > 0;) {
    const std::size_t dim = how.order.empty() ? k : how.order[k];
    chunk.strides[dim] = stride;
    stride = stride * box.extent[dim] + (how.padding.empty() ? 0 : how.padding[k]);
  }
  chunk.record_position = chunk.position;
  chunk.record_bytes = stride * size;
  content += std::string(stride * size, '%');
  for_each_index(box.extent, [&](std::uint64_t, const Shape& index) {
    Shape global = index;
    std::uint64_t at = 0;
    for (std::size_t d = 0; d < rank; ++d) {
      global[d] += box.offset[d];
      at += index[d] * chunk.strides[d];
    }
    const std::string element = element_of(number_at(tensor, linear(global, row.shape)), row.dtype);
    content.replace(chunk.position + at * size, size, how.big_endian ? reversed_units(element, row.dtype) : element);
  });
  source.files[file].size_bytes = content.size();
  chunks.push_back(chunk);
}

std::string StoredModel::expected(const Target& target) const {
  const std::size_t size = info(target.dtype).size_bytes;
  std::string bytes(volume(target.shape) * size, '?');
  for (const Term& term : target.terms) {
    Shape extents;
    for (const Axis& axis : term.axes) extents.push_back(axis.extent);
    for_each_index(extents, [&](std::uint64_t, const Shape& index) {
      Shape from = term.source_start, to = term.target_start;
      for (std::size_t k = 0; k < term.axes.size(); ++k) {
        from[term.axes[k].source_dim] += index[k] * term.axes[k].source_step;
        to[term.axes[k].target_dim] += index[k] * term.axes[k].target_step;
      }
      const std::uint64_t number = number_at(term.source, linear(from, tensors[term.source].shape));
      bytes.replace(linear(to, target.shape) * size, size, element_of(number, target.dtype));
    });
  }
  return bytes;
}

Catalog StoredModel::catalog_of(int rank, int ranks) const {
  Catalog catalog;
  catalog.tensors = tensors;
  for (const Chunk& chunk : chunks)
    if (static_cast<int>(chunk.tensor) % ranks == rank) catalog.chunks.push_back(chunk);
  std::sort(catalog.chunks.begin(), catalog.chunks.end(), [](const Chunk& a, const Chunk& b) {
    if (a.tensor != b.tensor) return a.tensor < b.tensor;
    return std::lexicographical_compare(a.box.offset.begin(), a.box.offset.end(), b.box.offset.begin(), b.box.offset.end());
  });
  return catalog;
}

Layout lay_out_for_test(const Targets& targets, std::uint64_t file_bytes, std::uint64_t header_bytes, std::uint64_t gap_bytes) {
  Layout layout;
  for (std::uint32_t t = 0; t < targets.targets.size(); ++t) {
    const Target& target = targets.targets[t];
    const std::uint64_t bytes = volume(target.shape) * info(target.dtype).size_bytes;
    if (layout.files.empty() || layout.files.back().size_bytes + gap_bytes + bytes > file_bytes) {
      const std::string name = "out" + std::to_string(layout.files.size()) + ".safetensors";
      layout.files.push_back({name, std::string(header_bytes, 'H'), header_bytes});
    } else {
      layout.files.back().size_bytes += gap_bytes;
    }
    layout.placed.push_back({t, static_cast<std::uint32_t>(layout.files.size() - 1), layout.files.back().size_bytes, bytes});
    layout.files.back().size_bytes += bytes;
  }
  return layout;
}

std::vector<std::string> expected_files(const StoredModel& model, const Targets& targets, const Layout& layout) {
  std::vector<std::string> files;
  for (const OutputFile& file : layout.files) files.push_back(file.header + std::string(file.size_bytes - file.header.size(), '\0'));
  for (const PlacedTarget& placed : layout.placed)
    files[placed.file].replace(placed.position, placed.size_bytes, model.expected(targets.targets[placed.target]));
  return files;
}

}  // namespace unshard::test
