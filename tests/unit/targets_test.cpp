// Terms, parts and the proof of coverage, on tensors small enough to write down.
#include "unshard/targets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::uint64_t hole = ~std::uint64_t{0};

std::uint64_t place(const Shape& index, const Shape& shape) {
  std::uint64_t at = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}

/// Applies a part element by element: the target element gets the number of the source element.
void apply(const Part& part, const Shape& source, const Shape& target, std::vector<std::uint64_t>& out) {
  const std::uint64_t count = volume(part.target_box.extent);
  for (std::uint64_t n = 0; n < count; ++n) {
    Shape to = part.target_box.offset;
    Shape from = part.source_box.offset;
    std::uint64_t rest = n;
    for (std::size_t d = target.size(); d-- > 0;) {
      const std::uint64_t i = rest % part.target_box.extent[d];
      rest /= part.target_box.extent[d];
      to[d] += i * part.target_step[d];
      if (part.source_dim[d] >= 0) from[part.source_dim[d]] += i * part.source_step[part.source_dim[d]];
    }
    ASSERT_TRUE(inside({to, Shape::filled(to.size(), 1)}, target));
    ASSERT_TRUE(inside({from, Shape::filled(from.size(), 1)}, source));
    std::uint64_t& element = out[place(to, target)];
    ASSERT_EQ(element, hole) << "written twice";
    element = place(from, source);
  }
}

/// The target as numbers of source elements (row-major), gathered box by box of `rows` rows and `columns` columns of the last dimension.
std::vector<std::uint64_t> gather(const Target& target, const Shape& source, std::uint64_t rows = 1000, std::uint64_t columns = 1000) {
  std::vector<std::uint64_t> out(volume(target.shape), hole);
  const std::size_t last = target.shape.size() - 1;
  for (std::uint64_t row = 0; row < target.shape[0]; row += rows) {
    for (std::uint64_t column = 0; column < target.shape[last]; column += columns) {
      Box box = whole(target.shape);
      if (last > 0) {
        box.offset[last] = column;
        box.extent[last] = std::min(columns, target.shape[last] - column);
      } else if (column > 0) {
        continue;
      }
      box.offset[0] = row;
      box.extent[0] = std::min(rows, target.shape[0] - row);
      for_each_part(target, box, [&](const Part& part) {
        for (std::size_t d = 0; d < target.shape.size(); ++d) {
          EXPECT_GE(part.target_box.offset[d], box.offset[d]);
          EXPECT_LT(part.target_box.offset[d] + (part.target_box.extent[d] - 1) * part.target_step[d], box.offset[d] + box.extent[d]);
        }
        apply(part, source, target.shape, out);
      });
    }
  }
  return out;
}

std::vector<std::uint64_t> numbers(std::uint64_t count) {
  std::vector<std::uint64_t> out(count);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

TEST(Parts, CopyIsOnePartWithBothBoxesEqual) {
  const Target target{"w", DType::f32, {3, 4}, {copy_of(0, {3, 4})}};
  std::vector<Part> parts;
  for_each_part(target, {{1, 0}, {2, 3}}, [&](const Part& part) { parts.push_back(part); });
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].source_box, (Box{{1, 0}, {2, 3}}));
  EXPECT_EQ(parts[0].target_box, (Box{{1, 0}, {2, 3}}));
  EXPECT_EQ(gather(target, {3, 4}, 1, 3), numbers(12));
}

TEST(Parts, ZeroDimensionalTensorIsOneElement) {
  const Target target{"scale", DType::f32, {}, {copy_of(7, {})}};
  std::size_t parts = 0;
  for_each_part(target, whole({}), [&](const Part& part) {
    ++parts;
    EXPECT_EQ(part.source, 7U);
    EXPECT_TRUE(part.source_box.extent.empty());
  });
  EXPECT_EQ(parts, 1U);
  check_target(target, std::vector<TensorRow>(8, TensorRow{"scale", DType::f32, {}, 0}));
}

TEST(Parts, EmptyTensorHasNone) {
  const Target target{"empty", DType::f32, {0, 5}, {copy_of(0, {0, 5})}};
  for_each_part(target, whole({0, 5}), [](const Part&) { FAIL(); });
  check_target(target, {{"empty", DType::f32, {0, 5}, 0}});
}

// Source [2, 4, 2]: two experts of [gate 2 rows; up 2 rows]. The up projection of expert 1 is its last two rows.
TEST(Parts, ExpertOfAStack) {
  Term up{0, {1, 2, 0}, {0, 0}, {{2, 1, 0, 1, 1}, {2, 2, 1, 1, 1}}};
  const Target target{"experts.1.up", DType::f32, {2, 2}, {up}};
  EXPECT_EQ(gather(target, {2, 4, 2}), (std::vector<std::uint64_t>{12, 13, 14, 15}));
  check_target(target, {{"gate_up", DType::f32, {2, 4, 2}, 0}});
}

// Columns 0, 2, 4 of [2, 6], transposed.
TEST(Parts, InterleavedColumnsTransposed) {
  const Target target{"gate", DType::f32, {3, 2}, {{0, {0, 0}, {0, 0}, {{2, 0, 1, 1, 1}, {3, 1, 0, 2, 1}}}}};
  const std::vector<std::uint64_t> expected{0, 6, 2, 8, 4, 10};
  EXPECT_EQ(gather(target, {2, 6}), expected);
  EXPECT_EQ(gather(target, {2, 6}, 1, 1), expected);
  EXPECT_EQ(gather(target, {2, 6}, 2, 1), expected);
}

// Fused qkv of 2 groups: rows q0 q1 k v | q2 q3 k v, head dimension 2, one column.
TEST(Parts, QueriesOfAFusedQkvByGroup) {
  const Target q{"q", DType::f32, {8, 1}, {{0, {0, 0}, {0, 0}, {{2, 0, 0, 8, 4}, {2, 0, 0, 2, 2}, {2, 0, 0, 1, 1}, {1, 1, 1, 1, 1}}}}};
  const std::vector<std::uint64_t> expected{0, 1, 2, 3, 8, 9, 10, 11};
  EXPECT_EQ(gather(q, {16, 1}), expected);
  EXPECT_EQ(gather(q, {16, 1}, 3), expected);
  std::size_t parts = 0;
  for_each_part(q, whole(q.shape), [&](const Part&) { ++parts; });
  EXPECT_EQ(parts, 2U) << "rows of a group are one part";
  const Target k{"k", DType::f32, {4, 1}, {{0, {4, 0}, {0, 0}, {{2, 0, 0, 8, 2}, {2, 0, 0, 1, 1}, {1, 1, 1, 1, 1}}}}};
  EXPECT_EQ(gather(k, {16, 1}), (std::vector<std::uint64_t>{4, 5, 12, 13}));
  const std::vector<TensorRow> table{{"qkv", DType::f32, {16, 1}, 0}};
  check_target(q, table);
  check_target(k, table);
}

// The other way: q, k, v of 2 groups into one tensor; three terms whose bounds overlap but whose places do not.
TEST(Coverage, GroupsOfAFusedTargetAreProvenApart) {
  Target qkv{"qkv", DType::f32, {16, 3}, {}};
  qkv.terms.push_back({0, {0, 0}, {0, 0}, {{2, 0, 0, 4, 8}, {4, 0, 0, 1, 1}, {3, 1, 1, 1, 1}}});
  qkv.terms.push_back({1, {0, 0}, {4, 0}, {{2, 0, 0, 2, 8}, {2, 0, 0, 1, 1}, {3, 1, 1, 1, 1}}});
  qkv.terms.push_back({2, {0, 0}, {6, 0}, {{2, 0, 0, 2, 8}, {2, 0, 0, 1, 1}, {3, 1, 1, 1, 1}}});
  const std::vector<TensorRow> table{{"q", DType::f32, {8, 3}, 0}, {"k", DType::f32, {4, 3}, 0}, {"v", DType::f32, {4, 3}, 0}};
  check_target(qkv, table);
  qkv.terms[2].target_start[0] = 5;
  EXPECT_THROW(check_target(qkv, table), Error) << "v over the last rows of k";
}

TEST(Coverage, InterleavedHalvesAreProvenApart) {
  Target target{"gate_up", DType::f32, {6}, {{0, {0}, {0}, {{3, 0, 0, 1, 2}}}, {1, {0}, {1}, {{3, 0, 0, 1, 2}}}}};
  const std::vector<TensorRow> table{{"gate", DType::f32, {3}, 0}, {"up", DType::f32, {3}, 0}};
  check_target(target, table);
  target.terms[1].target_start[0] = 0;
  EXPECT_THROW(check_target(target, table), Error);
}

TEST(Coverage, HoleOverlapAndOutsideAreRefusedByName) {
  const std::vector<TensorRow> table{{"w", DType::f32, {4, 2}, 0}};
  const auto refuses = [&](const Target& target) {
    try {
      check_target(target, table);
    } catch (const Error& error) {
      return error.code() == ErrorCode::internal && std::string(error.what()).find("model.w") == 0;
    }
    return false;
  };
  Target target{"model.w", DType::f32, {4, 2}, {copy_of(0, {4, 2})}};
  check_target(target, table);
  Target holes = target;
  holes.shape = {5, 2};
  EXPECT_TRUE(refuses(holes));
  Target twice = target;
  twice.terms.push_back(copy_of(0, {4, 2}));
  EXPECT_TRUE(refuses(twice));
  Target outside = target;
  outside.terms[0].source_start[0] = 1;
  EXPECT_TRUE(refuses(outside));
  Target same_place = target;
  same_place.terms[0].axes[0].target_step = 0;
  EXPECT_TRUE(refuses(same_place));
  Target wraps = target;
  wraps.terms[0].axes[0].source_step = ~std::uint64_t{0} / 2;
  EXPECT_TRUE(refuses(wraps));
  Target no_source = target;
  no_source.terms[0].source = 5;
  EXPECT_TRUE(refuses(no_source));
}

// 128 experts × (gate, up) into one fused tensor: as many targets as a large model has layers are checked at once.
TEST(Coverage, StacksOfExpertsAreCheap) {
  std::vector<TensorRow> table;
  Target fused{"gate_up", DType::bf16, {128, 1536, 2048}, {}};
  for (TensorId e = 0; e < 256; ++e) {
    table.push_back({"expert", DType::bf16, {768, 2048}, 0});
    fused.terms.push_back({e, {0, 0}, {e / 2, (e % 2) * 768, 0}, {{768, 0, 1, 1, 1}, {2048, 1, 2, 1, 1}}});
  }
  for (int layer = 0; layer < 94; ++layer) check_target(fused, table);
  std::size_t parts = 0;
  for_each_part(fused, {{5, 700, 0}, {2, 100, 2048}}, [&](const Part&) { ++parts; });
  EXPECT_EQ(parts, 4U);
}

}  // namespace
}  // namespace unshard
