// Which runs may continue each other: the same stored bytes, made into the same output, with the same cut between the stages.
#include "command_identity.h"

#include <gtest/gtest.h>

#include <functional>
#include <mutex>

#include "unshard/in_process_comm.h"

namespace unshard {
namespace {

struct Command {
  Tree tree;
  Source source;
  std::vector<TensorRow> tensors;
  std::vector<Chunk> chunks;
  Targets targets;
  Layout layout;
  std::uint64_t stage_layers = 10;
};

/// Two tensors [4, 2] in two files, rows divided; the second file's records have no CRC.
Command two_files() {
  Command command;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ShardFile file;
    file.label = "rank_" + std::to_string(rank);
    file.path = "/step_100/" + file.label;
    file.size_bytes = 500;
    command.tree.entries[file.path].status.mtime_ns = 1000 + rank;
    command.source.files.push_back(file);
  }
  for (TensorId tensor = 0; tensor < 2; ++tensor) {
    const Shape shape{4, 2};
    command.tensors.push_back({"w" + std::to_string(tensor), DType::f32, shape, 0});
    for (std::uint32_t file = 0; file < 2; ++file) {
      Chunk chunk;
      chunk.tensor = tensor;
      chunk.file = file;
      chunk.box = {Shape{file * 2, 0}, Shape{2, 2}};
      chunk.strides = Shape{2, 1};
      chunk.position = chunk.record_position = 64 + tensor * 64;
      chunk.record_bytes = 16;
      chunk.has_crc = file == 0;
      chunk.record_crc = file == 0 ? 77 + tensor : 0;
      command.chunks.push_back(chunk);
    }
    command.targets.targets.push_back({"model.w" + std::to_string(tensor), DType::f32, shape, {copy_of(tensor, shape)}});
  }
  command.layout.files = {{"model.safetensors", "header", 70}};
  return command;
}

std::string identity(const Command& command, int ranks = 1) {
  std::string result;
  std::mutex mutex;
  run_ranks(ranks, {}, [&](Comm& comm) {
    Catalog catalog;
    catalog.tensors = command.tensors;
    for (const Chunk& chunk : command.chunks) {
      if (home_of(chunk.tensor, command.tensors.size(), ranks) == comm.rank()) catalog.chunks.push_back(chunk);
    }
    const std::string mine = command_identity(comm, command.tree, command.source, catalog, command.targets, command.layout, command.stage_layers);
    const std::lock_guard lock(mutex);
    if (!result.empty()) {
      EXPECT_EQ(mine, result);
    }
    result = mine;
  });
  return result;
}

TEST(CommandIdentity, IsTheSameForAnyNumberOfRanksAndAnotherPathToTheFiles) {
  const Command command = two_files();
  EXPECT_EQ(identity(command, 2), identity(command, 1));
  EXPECT_EQ(identity(command, 3), identity(command, 1));
  Command elsewhere = command;
  elsewhere.tree.entries.clear();
  for (ShardFile& file : elsewhere.source.files) file.path = "/mnt" + file.path;
  elsewhere.tree.entries["/mnt/step_100/rank_0"].status.mtime_ns = 5;  // a copy of the file whose records all have a CRC
  elsewhere.tree.entries["/mnt/step_100/rank_1"] = *command.tree.find("/step_100/rank_1");
  EXPECT_EQ(identity(elsewhere), identity(command));
}

TEST(CommandIdentity, DiffersWithWhateverChangesTheBytesThatAStageWrites) {
  const std::vector<std::pair<const char*, std::function<void(Command&)>>> changes{
      {"other data under a CRC", [](Command& c) { c.chunks[2].record_crc = 5; }},
      {"other data without a CRC: the file was changed later", [](Command& c) { c.tree.entries["/step_100/rank_1"].status.mtime_ns = 2000; }},
      {"the tensors' data change places", [](Command& c) { std::swap(c.chunks[0].record_crc, c.chunks[2].record_crc); }},
      {"another place in the record", [](Command& c) { c.chunks[0].position += 4; }},
      {"other strides", [](Command& c) { c.chunks[0].strides = Shape{1, 2}; }},
      {"another byte order", [](Command& c) { c.chunks[0].big_endian = true; }},
      {"another file size", [](Command& c) { c.source.files[0].size_bytes = 501; }},
      {"another stored type", [](Command& c) { c.tensors[0].dtype = DType::i32; }},
      {"other tensors written", [](Command& c) { c.layout.files[0].header = "other"; }},
      {"another source", [](Command& c) { c.targets.targets[0].terms[0].source = 1; }},
      {"a rearrangement inside a target", [](Command& c) { std::swap(c.targets.targets[0].terms[0].axes[0].target_dim,
                                                                     c.targets.targets[0].terms[0].axes[1].target_dim); }},
      {"another cut between the stages", [](Command& c) { c.stage_layers = 1; }},
      {"not staged", [](Command& c) { c.stage_layers = 0; }},
  };
  const std::string before = identity(two_files());
  for (const auto& [what, change] : changes) {
    Command command = two_files();
    change(command);
    EXPECT_NE(identity(command), before) << what;
  }
}

}  // namespace
}  // namespace unshard
