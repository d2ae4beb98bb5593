// Random tensors, cut into random boxes with random strides, mapped by random terms, moved by 1 to 4 ranks with random steps, buffers,
// readers and ways of writing: the files must hold what a naive gather gives, and the move must read and send what a dry run says.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "support/foreseen.h"
#include "support/memory_file_system.h"
#include "support/stored_model.h"
#include "unshard/in_process_comm.h"
#include "unshard/move.h"
#include "unshard/publish.h"

namespace unshard::test {
namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : generator_(seed) {}
  std::uint64_t up_to(std::uint64_t most) { return generator_() % (most + 1); }
  std::uint64_t between(std::uint64_t least, std::uint64_t most) { return least + up_to(most - least); }
  bool chance(std::uint64_t one_in) { return generator_() % one_in == 0; }
  template <class Value>
  Value one_of(const std::vector<Value>& values) {
    return values[generator_() % values.size()];
  }
  template <class Value>
  void shuffle(std::vector<Value>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[generator_() % i]);
  }

 private:
  std::mt19937_64 generator_;
};

Shape random_shape(Dice& dice, std::size_t rank) {
  Shape shape;
  for (std::size_t d = 0; d < rank; ++d) shape.push_back(dice.between(1, rank <= 2 ? 40 : 9));
  return shape;
}

void cut(Dice& dice, const Box& box, std::uint64_t pieces, std::vector<Box>& boxes) {
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < box.extent.size(); ++d)
    if (box.extent[d] > 1) dims.push_back(d);
  if (pieces <= 1 || dims.empty()) {
    boxes.push_back(box);
    return;
  }
  const std::size_t dim = dice.one_of(dims);
  const std::uint64_t at = dice.between(1, box.extent[dim] - 1);
  Box first = box, second = box;
  first.extent[dim] = at;
  second.offset[dim] += at;
  second.extent[dim] -= at;
  cut(dice, first, pieces / 2, boxes);
  cut(dice, second, pieces - pieces / 2, boxes);
}

StorageOrder random_order(Dice& dice, std::size_t rank) {
  StorageOrder how;
  how.big_endian = dice.chance(5);
  if (dice.chance(3)) {
    how.order.resize(rank);
    std::iota(how.order.begin(), how.order.end(), std::size_t{0});
    dice.shuffle(how.order);
  }
  if (dice.chance(3))
    for (std::size_t k = 0; k < rank; ++k) how.padding.push_back(dice.up_to(k + 1 == rank ? 0 : 3));
  return how;
}

TensorId random_tensor(Dice& dice, StoredModel& model, DType dtype, const Shape& shape) {
  const TensorId id = model.add(dtype, shape);
  std::vector<Box> boxes;
  cut(dice, whole(shape), dice.between(1, 6), boxes);
  for (const Box& box : boxes)
    model.store(id, box, static_cast<FileId>(dice.up_to(model.contents.size() - 1)), random_order(dice, shape.size()));
  return id;
}

Term start_of(TensorId source, std::size_t source_rank, std::size_t target_rank) {
  return {source, Shape::filled(source_rank, 0), Shape::filled(target_rank, 0), {}};
}

Axis axis_of(std::uint64_t extent, std::size_t source_dim, std::size_t target_dim, std::uint64_t source_step = 1,
             std::uint64_t target_step = 1) {
  return {extent, static_cast<std::uint8_t>(source_dim), static_cast<std::uint8_t>(target_dim), source_step, target_step};
}

/// All dimensions but `but` one to one.
void add_same_axes(Term& term, const Shape& shape, std::size_t but) {
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (d != but) term.axes.push_back(axis_of(shape[d], d, d));
}

/// Makes the sources of a target and its terms.
class RandomTarget {
 public:
  RandomTarget(Dice& dice, StoredModel& model, std::string name) : dice_(dice), model_(model) {
    target_.name = std::move(name);
    stored_ = dice.one_of<DType>(
        {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::u8, DType::i16, DType::c128, DType::f8_e4m3});
    target_.dtype = stored_;
    if (info(stored_).castable && dice.chance(2)) target_.dtype = dice.one_of<DType>({DType::f32, DType::bf16, DType::f16, DType::f64});
  }

  Target make() {
    switch (dice_.up_to(7)) {
      case 0:
        copied();
        break;
      case 1:
        permuted();
        break;
      case 2:
        stacked();
        break;
      case 3:
        unstacked();
        break;
      case 4:
        joined();
        break;
      case 5:
        interleaved();
        break;
      case 6:
        taken_apart();
        break;
      default:
        grouped();
        break;
    }
    return target_;
  }

 private:
  TensorId tensor(const Shape& shape) { return random_tensor(dice_, model_, stored_, shape); }
  Shape shape_of_rank(std::size_t least, std::size_t most) { return random_shape(dice_, dice_.between(least, most)); }

  void copied() {
    target_.shape = shape_of_rank(0, 4);
    target_.terms = {copy_of(tensor(target_.shape), target_.shape)};
  }

  void permuted() {
    const Shape shape = shape_of_rank(2, 4);
    std::vector<std::size_t> order(shape.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    dice_.shuffle(order);
    Term term = start_of(tensor(shape), shape.size(), shape.size());
    for (std::size_t d = 0; d < shape.size(); ++d) {
      target_.shape.push_back(shape[order[d]]);
      term.axes.push_back(axis_of(shape[order[d]], order[d], d));
    }
    target_.terms = {term};
  }

  void stacked() {
    const Shape shape = shape_of_rank(1, 3);
    const std::uint64_t count = dice_.between(1, 4);
    target_.shape.push_back(count);
    for (const std::uint64_t extent : shape) target_.shape.push_back(extent);
    for (std::uint64_t i = 0; i < count; ++i) {
      Term term = start_of(tensor(shape), shape.size(), shape.size() + 1);
      term.target_start[0] = i;
      for (std::size_t d = 0; d < shape.size(); ++d) term.axes.push_back(axis_of(shape[d], d, d + 1));
      target_.terms.push_back(term);
    }
  }

  /// One index of the source's first dimension, the others in reverse.
  void unstacked() {
    const Shape shape = shape_of_rank(2, 4);
    Term term = start_of(tensor(shape), shape.size(), shape.size() - 1);
    term.source_start[0] = dice_.up_to(shape[0] - 1);
    for (std::size_t d = shape.size() - 1; d > 0; --d) {
      term.axes.push_back(axis_of(shape[d], d, target_.shape.size()));
      target_.shape.push_back(shape[d]);
    }
    target_.terms = {term};
  }

  /// One behind the other along a dimension; of the last one only the first part.
  void joined() {
    Shape shape = shape_of_rank(1, 3);
    const std::size_t dim = dice_.up_to(shape.size() - 1);
    const std::uint64_t count = dice_.between(1, 3);
    target_.shape = shape;
    target_.shape[dim] = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      shape[dim] = dice_.between(1, 20);
      const std::uint64_t used = i + 1 == count ? dice_.between(1, shape[dim]) : shape[dim];
      Term term = start_of(tensor(shape), shape.size(), shape.size());
      term.target_start[dim] = target_.shape[dim];
      add_same_axes(term, shape, dim);
      term.axes.push_back(axis_of(used, dim, dim));
      target_.shape[dim] += used;
      target_.terms.push_back(term);
    }
  }

  void interleaved() {
    const Shape shape = shape_of_rank(1, 3);
    const std::size_t dim = dice_.up_to(shape.size() - 1);
    target_.shape = shape;
    target_.shape[dim] *= 2;
    for (std::uint64_t i = 0; i < 2; ++i) {
      Term term = start_of(tensor(shape), shape.size(), shape.size());
      term.target_start[dim] = i;
      add_same_axes(term, shape, dim);
      term.axes.push_back(axis_of(shape[dim], dim, dim, 1, 2));
      target_.terms.push_back(term);
    }
  }

  /// Every second or third index of a dimension.
  void taken_apart() {
    Shape shape = shape_of_rank(1, 3);
    const std::size_t dim = dice_.up_to(shape.size() - 1);
    const std::uint64_t step = dice_.between(2, 3), count = dice_.between(1, 12);
    shape[dim] = count * step;
    Term term = start_of(tensor(shape), shape.size(), shape.size());
    term.source_start[dim] = dice_.up_to(step - 1);
    add_same_axes(term, shape, dim);
    term.axes.push_back(axis_of(count, dim, dim, step, 1));
    target_.shape = shape;
    target_.shape[dim] = count;
    target_.terms = {term};
  }

  /// The q rows of a fused qkv: groups of `kept` rows among `kept + others`.
  void grouped() {
    const std::uint64_t groups = dice_.between(1, 5), kept = dice_.between(1, 6), others = dice_.up_to(4), columns = dice_.between(1, 30);
    const Shape shape{groups * (kept + others), columns};
    Term term = start_of(tensor(shape), 2, 2);
    term.source_start[0] = dice_.up_to(others);
    term.axes = {axis_of(groups, 0, 0, kept + others, kept), axis_of(kept, 0, 0), axis_of(columns, 1, 1)};
    target_.shape = {groups * kept, columns};
    target_.terms = {term};
  }

  Dice& dice_;
  StoredModel& model_;
  DType stored_ = DType::f32;
  Target target_;
};

/// What one run is made with.
struct Setting {
  int ranks = 1;
  int ranks_per_node = 0;
  std::uint64_t header_bytes = 0, gap_bytes = 0, file_bytes = 0, window_bytes = 0, step_bytes = 0, boundary_bytes = 0, spare_bytes = 0;
  bool node_local = false;
  MoveOptions move;
};

Setting random_setting(Dice& dice) {
  Setting s;
  s.ranks = static_cast<int>(dice.between(1, 4));
  s.ranks_per_node = static_cast<int>(dice.up_to(2));
  s.header_bytes = dice.between(8, 100);
  s.gap_bytes = dice.chance(3) ? dice.up_to(9) : 0;
  s.file_bytes = dice.one_of<std::uint64_t>({1000, 20000, 1000000});
  s.boundary_bytes = dice.one_of<std::uint64_t>({1, 100, 512, 4096});
  s.window_bytes = dice.one_of<std::uint64_t>({512, 4096, 100000});
  s.step_bytes = dice.one_of<std::uint64_t>({64, 256, 1000, 1024, 8192});
  s.move.io = dice.one_of<IoMode>({IoMode::automatic, IoMode::collective, IoMode::posix});
  s.move.threads = static_cast<int>(dice.between(1, 3));
  s.move.home_readers = dice.chance(2);
  s.node_local = s.move.home_readers && s.ranks_per_node > 0 && dice.chance(2);
  s.move.read_back = dice.chance(2);
  if (dice.chance(2)) s.move.trail_bytes = dice.up_to(1000);
  s.spare_bytes = dice.one_of<std::uint64_t>({0, 3000, 1000000});
  return s;
}

/// Returns whether ranks shared a file.
bool run_once(std::uint64_t seed) {
  Dice dice(seed);
  StoredModel model({"a.pt", "b.pt", "c.pt"});
  Targets targets;
  const std::uint64_t count = dice.between(1, 6);
  for (std::uint64_t t = 0; t < count; ++t) targets.targets.push_back(RandomTarget(dice, model, "target" + std::to_string(t)).make());
  Setting setting = random_setting(dice);
  const Layout layout = lay_out_for_test(targets, setting.file_bytes, setting.header_bytes, setting.gap_bytes);
  const Plan plan = make_plan(targets, layout,
                              {.ranks = setting.ranks,
                               .window_bytes = setting.window_bytes,
                               .step_bytes = setting.step_bytes,
                               .boundary_bytes = setting.boundary_bytes});
  setting.move.buffer_bytes = least_buffer_bytes(plan, setting.move) + setting.spare_bytes;

  MemoryFileSystem disk;
  const int nodes = setting.ranks_per_node == 0 ? 1 : (setting.ranks + setting.ranks_per_node - 1) / setting.ranks_per_node;
  std::vector<std::unique_ptr<MemoryFileSystem>> views;
  for (int node = 0; node < nodes; ++node) views.push_back(disk.other_node({"/in"}));
  for (std::size_t f = 0; f < model.contents.size(); ++f) {
    std::vector<std::uint32_t>& seen_by = model.source.files[f].nodes;
    seen_by.clear();
    const std::uint64_t only = dice.up_to(static_cast<std::uint64_t>(nodes) - 1);
    for (int node = 0; node < nodes; ++node) {
      if (setting.node_local && only != static_cast<std::uint64_t>(node)) continue;
      seen_by.push_back(static_cast<std::uint32_t>(node));
      views[node]->put(model.source.files[f].path, model.contents[f]);
    }
  }
  for (const OutputFile& file : layout.files)
    disk.put("/out/" + partial_name(file), file.header + std::string(file.size_bytes - file.header.size(), '\0'));

  InProcessOptions options;
  options.seed = seed;
  options.ranks_per_node = setting.ranks_per_node;
  options.files = &disk;
  run_ranks(setting.ranks, options, [&](Comm& comm) {
    MemoryFileSystem& files = *views[comm.node_of(comm.rank())];
    FileCache sources(files, model.source);
    const Catalog catalog = model.catalog_of(comm.rank(), comm.size());
    const MoveNeeds needs =
        move_needs(comm, model.source, catalog, targets, plan, setting.move, setting.move.home_readers ? Readers::homes : Readers::owners);
    const ChunkTable chunks = send_chunks(comm, catalog, targets, plan);
    const MoveReport report = move(comm, sources, model.source, catalog, targets, plan, chunks, disk, "/out", setting.move);
    EXPECT_EQ(report.written_bytes, bytes_by_rank(plan)[comm.rank()]);
    expect_as_foreseen(comm, needs, report);
    verify(comm, disk, "/out", plan, report.extents, {.threads = 2});
  });

  const std::vector<std::string> expected = expected_files(model, targets, layout);
  for (std::size_t f = 0; f < layout.files.size(); ++f)
    EXPECT_TRUE(disk.content("/out/" + partial_name(layout.files[f])) == expected[f]) << layout.files[f].name;
  return std::any_of(plan.groups.begin(), plan.groups.end(), [](const Group& group) { return group.ranks.size() > 1; });
}

TEST(MoveProperty, FilesHoldWhatANaiveGatherGivesAndNeedsAreAsForeseen) {
  int shared = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ASSERT_NO_THROW(shared += run_once(seed) ? 1 : 0);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(shared, 100);
}

}  // namespace
}  // namespace unshard::test
