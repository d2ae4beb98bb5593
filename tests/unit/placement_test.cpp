// Expected rows are worked out by hand from the rules of torch/distributed/tensor/placement_types.py, or were printed by torch 2.13 where a
// comment says so.
#include "formats/placement.h"

#include <gtest/gtest.h>

#include "unshard/error.h"

namespace unshard {
namespace {

Placement shard(std::uint64_t dim) {
  return {Placement::Kind::shard, dim, 1};
}
Placement strided(std::uint64_t dim, std::uint64_t factor) {
  return {Placement::Kind::strided_shard, dim, factor};
}
Placement replicate() {
  return {Placement::Kind::replicate, 0, 1};
}
Placement partial() {
  return {Placement::Kind::partial, 0, 1};
}

StoredDTensor dtensor(Shape global, std::vector<Placement> placements, std::vector<std::uint64_t> mesh,
                      std::vector<std::uint64_t> coordinate, Shape local) {
  StoredDTensor tensor;
  tensor.global_shape = global;
  tensor.placements = std::move(placements);
  tensor.mesh_sizes = std::move(mesh);
  tensor.coordinate = std::move(coordinate);
  tensor.local.shape = local;
  tensor.local.strides = row_major_strides(local);
  return tensor;
}

std::vector<std::string> boxes(const StoredDTensor& tensor) {
  std::vector<std::string> result;
  for (const PlacedPiece& piece : place(tensor)) result.push_back(to_string(piece.box));
  return result;
}

using Boxes = std::vector<std::string>;

std::string failure(const StoredDTensor& tensor) {
  try {
    static_cast<void>(place(tensor));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    return error.what();
  }
  return "";
}

/// Rows of a [n, 4] tensor cut along dimension 0 over `ranks`.
Boxes rows(std::uint64_t n, std::uint64_t ranks, std::uint64_t rank, std::uint64_t local) {
  return boxes(dtensor({n, 4}, {shard(0)}, {ranks}, {rank}, {local, 4}));
}

TEST(Shard, CutsEvenlyWhereItCan) {
  EXPECT_EQ(rows(8, 2, 0, 4), Boxes{"[0:4, 0:4]"});
  EXPECT_EQ(rows(8, 2, 1, 4), Boxes{"[4:8, 0:4]"});
}

TEST(Shard, LeavesTheLastRanksShortOrEmpty) {
  EXPECT_EQ(rows(5, 4, 1, 2), Boxes{"[2:4, 0:4]"});
  EXPECT_EQ(rows(5, 4, 2, 1), Boxes{"[4:5, 0:4]"});
  EXPECT_EQ(rows(5, 4, 3, 0), Boxes{});
  EXPECT_EQ(rows(9, 4, 2, 3), Boxes{"[6:9, 0:4]"});
  EXPECT_EQ(rows(9, 4, 3, 0), Boxes{});
  EXPECT_EQ(rows(2, 4, 1, 1), Boxes{"[1:2, 0:4]"});
  EXPECT_EQ(rows(2, 4, 2, 0), Boxes{});
}

TEST(Shard, AcceptsTheOneDimensionalEmptyPartOfOldReleases) {
  EXPECT_EQ(boxes(dtensor({5, 4}, {shard(0)}, {4}, {3}, {0})), Boxes{});
}

TEST(Shard, CutsAnyDimension) {
  EXPECT_EQ(boxes(dtensor({6, 5}, {shard(1)}, {2}, {0}, {6, 3})), Boxes{"[0:6, 0:3]"});
  EXPECT_EQ(boxes(dtensor({6, 5}, {shard(1)}, {2}, {1}, {6, 2})), Boxes{"[0:6, 3:5]"});
}

TEST(Shard, CutsTwoDimensionsOverTwoMeshDimensions) {
  EXPECT_EQ(boxes(dtensor({8, 6}, {shard(0), shard(1)}, {2, 3}, {1, 2}, {4, 2})), Boxes{"[4:8, 4:6]"});
}

TEST(Shard, TwiceOnOneDimensionCutsWithin) {  // [Shard(0), Shard(0)]: as written, the first cuts the outer
  EXPECT_EQ(boxes(dtensor({8}, {shard(0), shard(0)}, {2, 2}, {0, 1}, {2})), Boxes{"[2:4]"});
  EXPECT_EQ(boxes(dtensor({8}, {shard(0), shard(0)}, {2, 2}, {1, 0}, {2})), Boxes{"[4:6]"});
}

TEST(Shard, FollowsAStatedOrder) {  // mesh dimension 1 first: rank (0, 1) has the first half of the second half
  StoredDTensor tensor = dtensor({8}, {shard(0), shard(0)}, {2, 2}, {0, 1}, {2});
  tensor.shard_order = {1, 0};
  EXPECT_EQ(boxes(tensor), Boxes{"[4:6]"});
}

TEST(Replicate, ChangesNothing) {
  EXPECT_EQ(boxes(dtensor({4, 2}, {replicate(), shard(0)}, {2, 2}, {1, 1}, {2, 2})), Boxes{"[2:4, 0:2]"});
  EXPECT_EQ(boxes(dtensor({}, {replicate()}, {4}, {3}, {})), Boxes{"[]"});
}

TEST(StridedShard, Fsdp2WithTensorParallelOfEightRows) {
  const auto part = [](std::uint64_t dp, std::uint64_t tp) {
    return boxes(dtensor({8}, {strided(0, 2), shard(0)}, {2, 2}, {dp, tp}, {2}));
  };
  EXPECT_EQ(part(0, 0), Boxes{"[0:2]"});
  EXPECT_EQ(part(0, 1), Boxes{"[4:6]"});
  EXPECT_EQ(part(1, 0), Boxes{"[2:4]"});
  EXPECT_EQ(part(1, 1), Boxes{"[6:8]"});
}

TEST(StridedShard, UnevenFsdp2WithTensorParallelIsNested) {  // 7 rows, tp 2, dp 3: 4 + 3 rows, then 2, 2, 0 and 1, 1, 1 (torch 2.13)
  const auto part = [](std::uint64_t dp, std::uint64_t tp, std::uint64_t local) {
    return boxes(dtensor({7}, {strided(0, 2), shard(0)}, {3, 2}, {dp, tp}, {local}));
  };
  EXPECT_EQ(part(0, 0, 2), Boxes{"[0:2]"});
  EXPECT_EQ(part(0, 1, 1), Boxes{"[4:5]"});
  EXPECT_EQ(part(1, 0, 2), Boxes{"[2:4]"});
  EXPECT_EQ(part(1, 1, 1), Boxes{"[5:6]"});
  EXPECT_EQ(part(2, 0, 0), Boxes{});
  EXPECT_EQ(part(2, 1, 1), Boxes{"[6:7]"});
}

TEST(StridedShard, LeftToRightWhereOnlyThatFitsTheLocalShape) {
  // 7 rows, literally: chunks of 4 and 3 rows cut over 3 ranks are 2, 2, 0 and 1, 1, 1 rows, so the last rank has row 6 only, and the first
  // of 2 gets it.
  EXPECT_EQ(boxes(dtensor({7}, {strided(0, 2), shard(0)}, {3, 2}, {2, 0}, {1})), Boxes{"[6:7]"});  // nested would be empty
}

TEST(StridedShard, AloneHoldsRowsOfSeveralPlaces) {  // 12 rows in 3 chunks of 4, each cut in 2: rank 1 has 2-3, 6-7, 10-11
  const auto pieces = place(dtensor({12, 2}, {strided(0, 3)}, {2}, {1}, {6, 2}));
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_EQ(to_string(pieces[0].box), "[2:4, 0:2]");
  EXPECT_EQ(to_string(pieces[1].box), "[6:8, 0:2]");
  EXPECT_EQ(to_string(pieces[2].box), "[10:12, 0:2]");
  EXPECT_EQ(to_string(pieces[1].local_offset), "[2, 0]");
  EXPECT_EQ(to_string(pieces[2].local_offset), "[4, 0]");
}

TEST(StridedShard, IsCutAgainByALaterShard) {  // rows 0,1,4,5,8,9 of rank 0, then halves of that list: 0,1,4 and 5,8,9
  const auto part = [](std::uint64_t i) { return boxes(dtensor({12}, {strided(0, 3), shard(0)}, {2, 2}, {0, i}, {3})); };
  EXPECT_EQ(part(0), (Boxes{"[0:2]", "[4:5]"}));
  EXPECT_EQ(part(1), (Boxes{"[5:6]", "[8:10]"}));
}

TEST(StridedShard, ThreeMeshDimensionsNest) {  // dp 2, cp 2 and tp 2 on 16 rows: tp cuts first, then cp, then dp
  const auto part = [](std::uint64_t dp, std::uint64_t cp, std::uint64_t tp) {
    return boxes(dtensor({16}, {strided(0, 4), strided(0, 2), shard(0)}, {2, 2, 2}, {dp, cp, tp}, {2}));
  };
  EXPECT_EQ(part(0, 0, 0), Boxes{"[0:2]"});
  EXPECT_EQ(part(1, 0, 0), Boxes{"[2:4]"});
  EXPECT_EQ(part(0, 1, 0), Boxes{"[4:6]"});
  EXPECT_EQ(part(0, 0, 1), Boxes{"[8:10]"});
}

TEST(Place, RefusesPartialSums) {
  EXPECT_NE(failure(dtensor({4}, {partial()}, {2}, {0}, {4})).find("Partial"), std::string::npos);
  EXPECT_EQ(boxes(dtensor({4}, {partial()}, {1}, {0}, {4})), Boxes{"[0:4]"});  // one rank: nothing to add up
}

TEST(Place, RefusesALocalShapeThatDoesNotFit) {
  EXPECT_NE(failure(dtensor({8, 4}, {shard(0)}, {2}, {0}, {3, 4})).find("[3, 4]"), std::string::npos);
  EXPECT_NE(failure(dtensor({8, 4}, {shard(0)}, {2}, {0}, {4})), "");
  EXPECT_NE(failure(dtensor({8}, {shard(0)}, {2}, {0}, {0})), "");
}

TEST(Place, RefusesWhatContradictsTheMesh) {
  EXPECT_NE(failure(dtensor({8}, {shard(0)}, {2}, {2}, {4})), "");
  EXPECT_NE(failure(dtensor({8}, {shard(0)}, {0}, {0}, {4})), "");
  EXPECT_NE(failure(dtensor({8}, {shard(1)}, {2}, {0}, {4})), "");
  EXPECT_NE(failure(dtensor({8}, {shard(0)}, {2, 2}, {0, 0}, {4})), "");
  EXPECT_NE(failure(dtensor({8}, {strided(0, 0)}, {2}, {0}, {4})), "");
  StoredDTensor twice = dtensor({8}, {shard(0), shard(0)}, {2, 2}, {0, 0}, {2});
  twice.shard_order = {0, 0};
  EXPECT_NE(failure(twice), "");
}

TEST(Place, EndsForImpossibleNumbers) {
  const std::uint64_t huge = std::uint64_t{1} << 61U;
  EXPECT_NE(failure(dtensor({huge}, {strided(0, huge)}, {2}, {1}, {4})), "");
  EXPECT_NE(failure(dtensor({~std::uint64_t{0}}, {shard(0)}, {2}, {1}, {4})), "");
  EXPECT_EQ(boxes(dtensor({4}, {shard(0)}, {~std::uint64_t{0}}, {3}, {1})), Boxes{"[3:4]"});
}

TEST(Place, ARankOutsideTheMeshHoldsNothing) {
  StoredDTensor tensor = dtensor({8}, {shard(0)}, {2}, {}, {0});
  tensor.outside_mesh = true;
  EXPECT_EQ(boxes(tensor), Boxes{});
  tensor.local.shape = {4};
  EXPECT_NE(failure(tensor), "");
}

}  // namespace
}  // namespace unshard
