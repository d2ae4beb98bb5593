// Boxes against tensors: the defects are made by hand, so what must be found is known.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "box_cover.h"

namespace unshard {
namespace {

using Kind = Cover::Kind;

Box box(Shape offset, Shape extent) {
  return {offset, extent};
}

/// A grid of rows x columns boxes of 2 x 3 elements.
std::vector<Box> grid(std::uint64_t rows, std::uint64_t columns) {
  std::vector<Box> boxes;
  for (std::uint64_t r = 0; r < rows; ++r) {
    for (std::uint64_t c = 0; c < columns; ++c) boxes.push_back(box({2 * r, 3 * c}, {2, 3}));
  }
  return boxes;
}

TEST(CheckCover, AcceptsSlabsGridsAndSingleElements) {
  EXPECT_EQ(check_cover({8, 4}, std::vector{box({0, 0}, {4, 4}), box({4, 0}, {4, 4})}).kind, Kind::exact);
  EXPECT_EQ(check_cover({4, 8}, std::vector{box({0, 0}, {4, 3}), box({0, 3}, {4, 5})}).kind, Kind::exact);
  EXPECT_EQ(check_cover({10, 12}, grid(5, 4)).kind, Kind::exact);
  EXPECT_EQ(check_cover({}, std::vector{box({}, {})}).kind, Kind::exact);
  EXPECT_EQ(check_cover({4}, std::vector{box({2}, {2}), box({0}, {2})}).kind, Kind::exact);
}

TEST(CheckCover, FindsTheHole) {
  const Cover rows = check_cover({8, 4}, std::vector{box({0, 0}, {3, 4}), box({5, 0}, {3, 4})});
  EXPECT_EQ(rows.kind, Kind::hole);
  EXPECT_EQ(to_string(rows.where), "[3:5, 0:4]");
  EXPECT_EQ(to_string(check_cover({8, 4}, std::vector{box({0, 0}, {7, 4})}).where), "[7:8, 0:4]");
  EXPECT_EQ(to_string(check_cover({8, 4}, std::vector<Box>{}).where), "[0:8, 0:4]");
  EXPECT_EQ(check_cover({}, std::vector<Box>{}).kind, Kind::hole);
  auto boxes = grid(5, 4);
  boxes.erase(boxes.begin() + 6);  // row 1, column 2
  const Cover cell = check_cover({10, 12}, boxes);
  EXPECT_EQ(cell.kind, Kind::hole);
  EXPECT_EQ(to_string(cell.where), "[2:4, 6:9]");
}

TEST(CheckCover, FindsTheOverlap) {
  const Cover rows = check_cover({8, 4}, std::vector{box({0, 0}, {5, 4}), box({3, 0}, {5, 4})});
  EXPECT_EQ(rows.kind, Kind::overlap);
  EXPECT_EQ(to_string(rows.where), "[3:5, 0:4]");
  EXPECT_EQ(rows.first, 0U);
  EXPECT_EQ(rows.second, 1U);
  auto boxes = grid(5, 4);
  boxes.push_back(box({2, 6}, {1, 1}));
  const Cover cell = check_cover({10, 12}, boxes);
  EXPECT_EQ(cell.kind, Kind::overlap);
  EXPECT_EQ(cell.first, 6U);
  EXPECT_EQ(cell.second, 20U);
  EXPECT_EQ(check_cover({4}, std::vector{box({0}, {4}), box({1}, {2})}).kind, Kind::overlap);
}

TEST(CheckCover, AHoleAndAnOverlapOfOneSizeDoNotCancelOut) {
  EXPECT_NE(check_cover({8}, std::vector{box({0}, {4}), box({2}, {4})}).kind, Kind::exact);
  EXPECT_NE(check_cover({4, 4}, std::vector{box({0, 0}, {2, 4}), box({1, 0}, {2, 4})}).kind, Kind::exact);
}

TEST(CheckCover, UnderstandsAPinwheel) {  // no plane across the tensor misses all five boxes
  std::vector<Box> boxes{box({0, 0}, {1, 2}), box({0, 2}, {2, 1}), box({2, 1}, {1, 2}), box({1, 0}, {2, 1}), box({1, 1}, {1, 1})};
  EXPECT_EQ(check_cover({3, 3}, boxes).kind, Kind::exact);
  boxes.pop_back();
  EXPECT_EQ(to_string(check_cover({3, 3}, boxes).where), "[1:2, 1:2]");
  boxes.push_back(box({1, 1}, {1, 2}));
  EXPECT_EQ(check_cover({3, 3}, boxes).kind, Kind::overlap);
}

/// Cuts `whole` at random planes until there are `count` boxes.
std::vector<Box> random_cuts(const Box& whole_box, std::size_t count, std::mt19937_64& random) {
  std::vector<Box> boxes{whole_box};
  for (int tries = 0; boxes.size() < count && tries < 10000; ++tries) {
    const std::size_t i = random() % boxes.size(), d = random() % whole_box.offset.size();
    if (boxes[i].extent[d] < 2) continue;
    Box upper = boxes[i];
    const std::uint64_t at = 1 + random() % (boxes[i].extent[d] - 1);
    upper.offset[d] += at;
    upper.extent[d] -= at;
    boxes[i].extent[d] = at;
    boxes.push_back(upper);
  }
  std::shuffle(boxes.begin(), boxes.end(), random);
  return boxes;
}

TEST(CheckCover, AgreesWithCountingEveryElement) {
  std::mt19937_64 random(1);
  int exact = 0;
  for (int round = 0; round < 2000; ++round) {
    const Shape shape{5, 4, 6};
    auto boxes = random_cuts(whole(shape), 1 + random() % 20, random);
    if (round % 2 == 1) {  // change one box
      Box& changed = boxes[random() % boxes.size()];
      const std::size_t d = random() % 3;
      if (random() % 2 == 0 && changed.extent[d] > 1) {
        --changed.extent[d];
      } else if (changed.offset[d] + changed.extent[d] < shape[d]) {
        ++changed.extent[d];
      }
    }
    std::vector<int> times(5 * 4 * 6, 0);
    for (const Box& b : boxes) {
      for (std::uint64_t x = b.offset[0]; x < b.offset[0] + b.extent[0]; ++x) {
        for (std::uint64_t y = b.offset[1]; y < b.offset[1] + b.extent[1]; ++y) {
          for (std::uint64_t z = b.offset[2]; z < b.offset[2] + b.extent[2]; ++z) ++times[(x * 4 + y) * 6 + z];
        }
      }
    }
    const bool once = std::all_of(times.begin(), times.end(), [](int n) { return n == 1; });
    const Cover cover = check_cover(shape, boxes);
    EXPECT_EQ(cover.kind == Kind::exact, once) << round;
    if (cover.kind != Kind::exact) {  // the place that it names is one
      const int n = times[(cover.where.offset[0] * 4 + cover.where.offset[1]) * 6 + cover.where.offset[2]];
      EXPECT_TRUE(cover.kind == Kind::hole ? n == 0 : n > 1) << round;
    }
    exact += once ? 1 : 0;
  }
  EXPECT_GT(exact, 500);
  EXPECT_LT(exact, 1600);
}

TEST(CheckCover, EndsForLargeGridsAndForTheWorst) {  // or ctest ends it
  auto boxes = grid(512, 64);
  EXPECT_EQ(check_cover({1024, 192}, boxes).kind, Kind::exact);
  boxes.pop_back();
  EXPECT_EQ(to_string(check_cover({1024, 192}, boxes).where), "[1022:1024, 189:192]");
  std::vector<Box> spiral;  // each cut splits off one box only
  std::uint64_t left = 0, top = 0, right = 4000, bottom = 4000;
  for (int turn = 0; turn < 1500; ++turn) {
    spiral.push_back(box({top, left}, {1, right - left})), ++top;
    spiral.push_back(box({top, left}, {bottom - top, 1})), ++left;
  }
  spiral.push_back(box({top, left}, {bottom - top, right - left}));
  EXPECT_NE(check_cover({4000, 4000}, spiral).kind, Kind::overlap);
}

}  // namespace
}  // namespace unshard
