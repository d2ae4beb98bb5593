// The best approximation of a matrix by one of low rank: exactly for small matrices, by random projection for large ones (N. Halko,
// P. Martinsson, J. Tropp, Finding structure with randomness, 2011, algorithm 4.4). The matrix is asked for in blocks of rows, always the
// same ones, so that the bits depend on nothing but its values.
#include "low_rank.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <string>

#include "unshard/error.h"

namespace unshard {
namespace {

using Read = std::function<void(std::uint64_t, std::span<float>)>;

constexpr std::int64_t block_rows = 512;
// Up to this many rows or columns the exact decomposition takes less than a second.
constexpr std::int64_t most_exact = 384;
constexpr int power_iterations = 3;

/// The matrix, block by block.
class Blocks {
 public:
  Blocks(std::int64_t rows, std::int64_t columns, const Read& read) : rows_(rows), columns_(columns), read_(read) {}

  template <class Work>
  void for_each(const Work& work) {
    for (std::int64_t first = 0; first < rows_; first += block_rows) {
      const std::int64_t height = std::min(block_rows, rows_ - first);
      const at::Tensor block = at::empty({height, columns_}, at::kFloat);
      read_(static_cast<std::uint64_t>(first), {block.data_ptr<float>(), static_cast<std::size_t>(height * columns_)});
      work(first, height, block);
    }
  }

  /// matrix · right
  at::Tensor times(const at::Tensor& right) {
    at::Tensor product = at::empty({rows_, right.size(1)}, at::kFloat);
    for_each([&](std::int64_t first, std::int64_t height, const at::Tensor& block) {
      product.narrow(0, first, height).copy_(at::mm(block, right));
    });
    return product;
  }

  /// matrixᵀ · left
  at::Tensor transposed_times(const at::Tensor& left) {
    at::Tensor product = at::zeros({columns_, left.size(1)}, at::kFloat);
    for_each([&](std::int64_t first, std::int64_t height, const at::Tensor& block) {
      product.addmm_(block.t(), left.narrow(0, first, height));
    });
    return product;
  }

  double square_norm() {
    double sum = 0;
    for_each([&](std::int64_t, std::int64_t, const at::Tensor& block) {
      const at::Tensor wide = block.to(at::kDouble);
      sum += (wide * wide).sum().item<double>();
    });
    return sum;
  }

  at::Tensor whole() {
    at::Tensor all = at::empty({rows_, columns_}, at::kDouble);
    for_each([&](std::int64_t first, std::int64_t height, const at::Tensor& block) { all.narrow(0, first, height).copy_(block); });
    return all;
  }

 private:
  std::int64_t rows_, columns_;
  const Read& read_;
};

at::Tensor orthonormal(const at::Tensor& columns) {
  return std::get<0>(at::linalg_qr(columns.to(at::kDouble), "reduced")).to(at::kFloat);
}

struct Decomposed {
  at::Tensor left, values, right;  ///< U [rows, n], S [n], Vᴴ [n, columns], in double
};

Decomposed exact(Blocks& blocks) {
  auto [left, values, right] = at::linalg_svd(blocks.whole(), false);
  return {left, values, right};
}

Decomposed by_projection(Blocks& blocks, std::int64_t rows, std::int64_t columns, std::int64_t rank) {
  const std::int64_t width = std::min({rank + std::max<std::int64_t>(rank / 2, 8), rows, columns});
  const at::Generator generator = at::detail::createCPUGenerator(20240607);
  at::Tensor basis = orthonormal(blocks.times(at::randn({columns, width}, generator, at::TensorOptions().dtype(at::kFloat))));
  for (int i = 0; i < power_iterations; ++i) basis = orthonormal(blocks.times(orthonormal(blocks.transposed_times(basis))));
  // matrix ≈ basis · small; the SVD of the small one's transpose (columns × width) is quick.
  const at::Tensor small = blocks.transposed_times(basis).to(at::kDouble);
  auto [right, values, left] = at::linalg_svd(small, false);
  return {at::mm(basis.to(at::kDouble), left.t()), values, right.t()};
}

std::vector<float> floats_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.to(at::kFloat).contiguous();
  const float* data = dense.data_ptr<float>();
  return {data, data + dense.numel()};
}

}  // namespace

LowRank approximate(std::uint64_t rows, std::uint64_t columns, std::uint64_t rank, const Read& read) {
  try {
    const c10::InferenceMode without_gradients;
    const auto height = static_cast<std::int64_t>(rows), width = static_cast<std::int64_t>(columns);
    const auto kept = static_cast<std::int64_t>(rank);
    Blocks blocks(height, width, read);
    LowRank result;
    result.square_norm = blocks.square_norm();
    const bool is_small = std::min(height, width) <= most_exact || kept * 4 > std::min(height, width);
    const Decomposed parts = is_small ? exact(blocks) : by_projection(blocks, height, width, kept);
    const at::Tensor values = parts.values.narrow(0, 0, kept);
    result.captured = (values * values).sum().item<double>();
    const at::Tensor roots = values.sqrt();
    result.left = floats_of(parts.left.narrow(1, 0, kept) * roots);
    result.right = floats_of(roots.unsqueeze(1) * parts.right.narrow(0, 0, kept));
    return result;
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::internal, std::string("LibTorch: ") + printable(error.what_without_backtrace()));
  }
}

}  // namespace unshard
