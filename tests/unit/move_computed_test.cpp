// Targets to which products are added, moved with random ranks, steps, buffers, readers and ways of writing: the files must hold what the
// definition gives, and the same bytes whatever the setting, also where sums are rounded.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

#include "cast.h"
#include "support/foreseen.h"
#include "support/memory_file_system.h"
#include "support/stored_model.h"
#include "unshard/error.h"
#include "unshard/in_process_comm.h"
#include "unshard/move.h"
#include "unshard/publish.h"

namespace unshard::test {
namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : generator_(seed) {}
  std::uint64_t between(std::uint64_t least, std::uint64_t most) { return least + generator_() % (most - least + 1); }
  template <class Value>
  Value one_of(const std::vector<Value>& values) {
    return values[generator_() % values.size()];
  }

 private:
  std::mt19937_64 generator_;
};

/// A matrix in two files, cut by rows and columns.
TensorId stored_in_four(StoredModel& model, DType dtype, const Shape& shape) {
  const TensorId id = model.add(dtype, shape);
  const std::uint64_t rows = shape[0] / 2, columns = shape[1] / 3;
  model.store(id, {{0, 0}, {shape[0] - rows, shape[1] - columns}}, 0);
  model.store(id, {{0, shape[1] - columns}, {shape[0] - rows, columns}}, 1, {{}, {}, true});
  model.store(id, {{shape[0] - rows, 0}, {rows, shape[1] - columns}}, 1, {{1, 0}, {}, false});
  model.store(id, {{shape[0] - rows, shape[1] - columns}, {rows, columns}}, 0);
  return model.tensors.size() - 1 == id ? id : 0;
}

Factor factor_of(TensorId id, const Shape& shape) {
  return {shape[0], shape[1], copy_of(id, shape)};
}

/// One of `rows` rows and `columns` columns with two products: one over all of it, one over a block inside.
Target computed(StoredModel& model, DType stored, DType written, std::uint64_t rows, std::uint64_t columns, double scale) {
  const Shape shape{rows, columns};
  Target target{"computed", written, shape, {copy_of(stored_in_four(model, stored, shape), shape)}, {}};
  Computation computation;
  const Shape left{rows, 3}, right{3, columns};
  computation.addends.push_back(
      {scale, 0, 0, factor_of(stored_in_four(model, DType::bf16, left), left), factor_of(stored_in_four(model, DType::f32, right), right)});
  const Shape block_left{rows / 2, 2}, block_right{4, columns / 2};
  Factor second = factor_of(stored_in_four(model, DType::f32, block_right), {2, columns / 2});
  second.term.source_start[0] = 1;  // every second row
  second.term.axes[0].source_step = 2;
  computation.addends.push_back(
      {0.5, rows / 3, columns / 3, factor_of(stored_in_four(model, DType::f16, block_left), block_left), std::move(second)});
  target.computation = std::make_shared<const Computation>(std::move(computation));
  return target;
}

double value_of(const StoredModel& model, const Term& term, std::uint64_t row, std::uint64_t column) {
  const Shape strides = row_major_strides(model.tensors[term.source].shape);
  std::uint64_t element = 0;
  for (std::size_t d = 0; d < strides.size(); ++d) element += term.source_start[d] * strides[d];
  for (const Axis& axis : term.axes) element += (axis.target_dim == 0 ? row : column) * axis.source_step * strides[axis.source_dim];
  return static_cast<double>(model.number_at(term.source, element));
}

/// By the definition of a Computation, in double: exact for small whole numbers.
std::string expected_elements(const StoredModel& model, const Target& target) {
  std::vector<float> values;
  const MatrixShape matrix = matrix_of(target.shape);
  for (std::uint64_t row = 0; row < matrix.rows; ++row) {
    for (std::uint64_t column = 0; column < matrix.columns; ++column) {
      double value = value_of(model, target.terms.front(), row, column);
      for (const Addend& addend : target.computation->addends) {
        if (row < addend.first_row || row >= addend.first_row + addend.left.rows || column < addend.first_column ||
            column >= addend.first_column + addend.columns())
          continue;
        double sum = 0;
        for (std::uint64_t k = 0; k < addend.left.columns; ++k)
          sum += value_of(model, addend.left.term, row - addend.first_row, k) *
                 value_of(model, addend.right->term, k, column - addend.first_column);
        value += addend.scale * sum;
      }
      if (!target.computation->row_factors.empty()) value *= target.computation->row_factors[row];
      if (!target.computation->column_factors.empty()) value *= target.computation->column_factors[column];
      values.push_back(static_cast<float>(value));
    }
  }
  std::string bytes(values.size() * info(target.dtype).size_bytes, '\0');
  cast(std::as_bytes(std::span(values)), DType::f32, std::as_writable_bytes(std::span(bytes)), target.dtype);
  return bytes;
}

struct Setting {
  int ranks = 1, ranks_per_node = 0;
  std::uint64_t window_bytes = 100000, step_bytes = 8192, spare_bytes = 0;
  MoveOptions move;
};

Setting random_setting(Dice& dice) {
  Setting s;
  s.ranks = static_cast<int>(dice.between(1, 4));
  s.ranks_per_node = static_cast<int>(dice.between(0, 2));
  s.window_bytes = dice.one_of<std::uint64_t>({4096, 100000});
  s.step_bytes = dice.one_of<std::uint64_t>({256, 1000, 8192, 100000});
  s.move.io = dice.one_of<IoMode>({IoMode::automatic, IoMode::collective, IoMode::posix});
  s.move.threads = static_cast<int>(dice.between(1, 3));
  s.move.home_readers = dice.between(0, 1) == 1;
  s.spare_bytes = dice.one_of<std::uint64_t>({0, 300000, 10000000});
  return s;
}

/// The bytes of the output file.
std::string moved(const StoredModel& stored, const Targets& targets, Setting setting, std::uint64_t seed, std::uint64_t header_bytes) {
  StoredModel model = stored;
  const Layout layout = lay_out_for_test(targets, 1 << 30, header_bytes, 0);
  const Plan plan =
      make_plan(targets, layout,
                {.ranks = setting.ranks, .window_bytes = setting.window_bytes, .step_bytes = setting.step_bytes, .boundary_bytes = 512});
  setting.move.buffer_bytes =
      std::max(least_buffer_bytes(plan, setting.move), least_computing_bytes(targets, setting.move.home_readers)) + setting.spare_bytes;
  MemoryFileSystem disk;
  for (std::size_t f = 0; f < model.contents.size(); ++f) disk.put(model.source.files[f].path, model.contents[f]);
  const OutputFile& file = layout.files.front();
  disk.put("/out/" + partial_name(file), file.header + std::string(file.size_bytes - file.header.size(), '\0'));
  InProcessOptions options;
  options.seed = seed;
  options.files = &disk;
  run_ranks(setting.ranks, options, [&](Comm& comm) {
    FileCache sources(disk, model.source);
    const Catalog catalog = model.catalog_of(comm.rank(), comm.size());
    const ChunkTable chunks = send_chunks(comm, catalog, targets, plan);
    const MoveNeeds needs =
        move_needs(comm, model.source, catalog, targets, plan, setting.move, setting.move.home_readers ? Readers::homes : Readers::owners);
    expect_as_foreseen(comm, needs, move(comm, sources, model.source, catalog, targets, plan, chunks, disk, "/out", setting.move));
  });
  return disk.content("/out/" + partial_name(file)).substr(header_bytes);
}

Target plain(StoredModel& model) {
  const Shape shape{7, 11};
  return {"plain", DType::f32, shape, {copy_of(stored_in_four(model, DType::f32, shape), shape)}, {}};
}

TEST(MoveComputed, FilesHoldWhatTheDefinitionGives) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    StoredModel model({"a.pt", "b.pt"});
    Targets targets;
    targets.targets.push_back(plain(model));
    const std::vector<DType> types{DType::f32, DType::bf16, DType::f16, DType::f64};
    Target target = computed(model, dice.one_of(types), dice.one_of<DType>({DType::f32, DType::bf16}), dice.between(60, 150),
                             dice.between(30, 1100), 0.25);
    Computation computation = *target.computation;
    if (seed % 3 == 1) computation.row_factors.assign(target.shape[0], 0.5F);
    if (seed % 3 == 2) computation.column_factors.assign(target.shape[1], 2.0F);
    target.computation = std::make_shared<const Computation>(std::move(computation));
    ASSERT_NO_THROW(check_target(target, model.tensors));
    targets.targets.push_back(target);
    targets.targets.push_back(plain(model));
    const std::string expected = model.expected(targets.targets[0]) + expected_elements(model, target) + model.expected(targets.targets[2]);
    // An odd header: elements are cut where ranks meet.
    ASSERT_TRUE(moved(model, targets, random_setting(dice), seed, 8 + seed % 2) == expected);
  }
}

TEST(MoveComputed, BytesDependOnNoSettingWhereSumsAreRounded) {
  const std::vector<std::pair<DType, DType>> types{
      {DType::bf16, DType::f32}, {DType::f32, DType::f32}, {DType::f64, DType::f32}, {DType::f32, DType::bf16}};
  for (const auto& [stored, written] : types) {
    StoredModel model({"a.pt", "b.pt"});
    Targets targets;
    targets.targets.push_back(computed(model, stored, written, 140, 700, 1.0 / 3));
    Dice dice(7);
    const std::string first = moved(model, targets, {}, 0, 8);
    if (written == DType::f32) {
      EXPECT_NE(first, expected_elements(model, targets.targets[0]));  // so rounding matters here
    }
    for (std::uint64_t seed = 1; seed < 8; ++seed) EXPECT_TRUE(moved(model, targets, random_setting(dice), seed, 8) == first) << seed;
  }
}

TEST(MoveComputed, ATooSmallBufferIsRefusedWithTheLeastOne) {
  StoredModel model({"a.pt", "b.pt"});
  Targets targets;
  targets.targets.push_back(computed(model, DType::bf16, DType::bf16, 140, 700, 1));
  const std::uint64_t least = least_computing_bytes(targets);
  EXPECT_GT(least, 0U);
  EXPECT_EQ(least_computing_bytes({{plain(model)}, {}}), 0U);
}

}  // namespace
}  // namespace unshard::test
