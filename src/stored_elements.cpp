#include "stored_elements.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "cast.h"

namespace unshard {
namespace {

constexpr std::uint64_t most_piece_bytes = std::uint64_t{4} << 20U;
constexpr std::uint64_t least_piece_bytes = least_reading_bytes / 8;
constexpr std::uint64_t worth_reading = 64;  ///< up to so many bytes read for one used, rather than a call for each run

struct Dimension {
  std::uint64_t extent = 0;
  std::uint64_t stride = 0;  ///< bytes
};

/// The dimensions of the piece from outer to inner, those that lie end to end joined; the run of bytes below them.
struct Form {
  std::vector<Dimension> dims;
  std::uint64_t run = 0;
};

Form form_of(const Chunk& chunk, std::uint64_t element) {
  Form form{{}, element};
  for (std::size_t d = chunk.box.extent.size(); d-- > 0;) {
    const Dimension dim{chunk.box.extent[d], chunk.strides[d] * element};
    if (dim.extent == 1) continue;
    if (form.dims.empty() && dim.stride == form.run) {
      form.run *= dim.extent;
    } else if (!form.dims.empty() && dim.stride == form.dims.back().extent * form.dims.back().stride) {
      form.dims.back().extent *= dim.extent;
    } else {
      form.dims.push_back(dim);
    }
  }
  std::reverse(form.dims.begin(), form.dims.end());
  return form;
}

class ElementReader {
 public:
  ElementReader(File& file, DType dtype, bool swap, const WorkLimits& limits, const std::function<void(std::span<std::byte>)>& sink)
      : file_(file),
        swap_unit_(swap ? info(dtype).swap_bytes : 1),
        limits_(limits),
        piece_bytes_(reading_piece_bytes(limits)),
        span_limit_(2 * piece_bytes_),
        sink_(sink) {}

  void run(const Form& form, std::uint64_t position) {
    if (form.dims.empty()) {
      read_range(file_, position, form.run, limits_, [&](std::span<std::byte> bytes) { pass_on(bytes); });
      return;
    }
    out_.reserve(static_cast<std::size_t>(std::min(piece_bytes_, bytes(form, 0))));
    descend(form, 0, position);
    flush();
  }

 private:
  /// Dimensions from `d` inwards.
  void descend(const Form& form, std::size_t d, std::uint64_t position) {
    const Dimension& dim = form.dims[d];
    const std::uint64_t inner = span(form, d + 1), used = bytes(form, d + 1);
    if (inner <= span_limit_) {
      const std::uint64_t step = std::max<std::uint64_t>(dim.stride, 1);
      const std::uint64_t together = std::min(dim.extent, 1 + (span_limit_ - inner) / step);
      if (together > 1 && (together - 1) * dim.stride + inner <= together * used * worth_reading)
        return read_blocks(form, d, position, together);
    }
    for (std::uint64_t i = 0; i < dim.extent; ++i) {
      if (d + 1 < form.dims.size()) {
        descend(form, d + 1, position + i * dim.stride);
      } else {
        read_run(position + i * dim.stride, form.run);
      }
    }
  }

  /// Reads `together` steps of dimension `d` in one call, then picks the elements.
  void read_blocks(const Form& form, std::size_t d, std::uint64_t position, std::uint64_t together) {
    const Dimension& dim = form.dims[d];
    for (std::uint64_t i = 0; i < dim.extent; i += together) {
      const std::uint64_t steps = std::min(together, dim.extent - i);
      block_.resize(static_cast<std::size_t>((steps - 1) * dim.stride + span(form, d + 1)));
      stop_if_signalled(limits_);
      file_.read_at(position + i * dim.stride, block_);
      for (std::uint64_t step = 0; step < steps; ++step) pick(form, d + 1, step * dim.stride);
    }
  }

  void pick(const Form& form, std::size_t d, std::uint64_t offset) {
    if (d == form.dims.size()) return add(std::span(block_).subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(form.run)));
    for (std::uint64_t i = 0; i < form.dims[d].extent; ++i) pick(form, d + 1, offset + i * form.dims[d].stride);
  }

  void read_run(std::uint64_t position, std::uint64_t length) {
    read_range(file_, position, length, limits_, [&](std::span<std::byte> bytes) { add(bytes); });
  }

  void add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto part = bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), piece_bytes_ - out_.size())));
      out_.insert(out_.end(), part.begin(), part.end());
      bytes = bytes.subspan(part.size());
      if (out_.size() == piece_bytes_) flush();
    }
  }
  void flush() {
    if (!out_.empty()) pass_on(out_);
    out_.clear();
  }
  void pass_on(std::span<std::byte> bytes) {
    if (swap_unit_ > 1) swap_bytes(bytes, swap_unit_);
    sink_(bytes);
  }

  static std::uint64_t span(const Form& form, std::size_t d) {
    std::uint64_t total = form.run;
    for (; d < form.dims.size(); ++d) total += (form.dims[d].extent - 1) * form.dims[d].stride;
    return total;
  }
  static std::uint64_t bytes(const Form& form, std::size_t d) {
    std::uint64_t total = form.run;
    for (; d < form.dims.size(); ++d) total *= form.dims[d].extent;
    return total;
  }

  File& file_;
  std::size_t swap_unit_;
  const WorkLimits& limits_;
  std::uint64_t piece_bytes_;  ///< a power of two, so that pieces end between elements
  std::uint64_t span_limit_;   ///< read at once around scattered elements
  const std::function<void(std::span<std::byte>)>& sink_;
  std::vector<std::byte> block_, out_;
};

}  // namespace

std::uint64_t without_repeats(Chunk& chunk) {
  std::uint64_t times = 1;
  for (std::size_t d = 0; d < chunk.box.extent.size(); ++d) {
    if (chunk.strides[d] != 0 || chunk.box.extent[d] == 1) continue;
    times *= chunk.box.extent[d];
    chunk.box.extent[d] = 1;
  }
  return times;
}

std::uint64_t span_bytes(const Chunk& chunk, DType dtype) {
  std::uint64_t elements = 1;
  for (std::size_t d = 0; d < chunk.box.extent.size(); ++d) elements += (chunk.box.extent[d] - 1) * chunk.strides[d];
  return elements * info(dtype).size_bytes;
}

std::uint64_t reading_piece_bytes(const WorkLimits& limits) {
  return std::clamp(std::bit_floor(limits.buffer_bytes / 8), least_piece_bytes, most_piece_bytes);
}

void read_range(File& file, std::uint64_t position, std::uint64_t length, const WorkLimits& limits,
                const std::function<void(std::span<std::byte>)>& sink) {
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(length, reading_piece_bytes(limits))));
  while (length > 0) {
    stop_if_signalled(limits);
    const auto piece = std::span(buffer).first(static_cast<std::size_t>(std::min<std::uint64_t>(length, buffer.size())));
    file.read_at(position, piece);
    sink(piece);
    position += piece.size();
    length -= piece.size();
  }
}

void read_elements(File& file, const Chunk& chunk, DType dtype, const WorkLimits& limits,
                   const std::function<void(std::span<std::byte>)>& sink) {
  ElementReader(file, dtype, chunk.big_endian, limits, sink).run(form_of(chunk, info(dtype).size_bytes), chunk.position);
}

}  // namespace unshard
