// Real rank files: what torch.save wrote, compared with what the model held (expected/*.safetensors of the cases, which PyTorch wrote).
#include "formats/torch_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/stored_values.h"
#include "unshard/error.h"

namespace unshard {
namespace {

using testing::stored_bytes;

const std::filesystem::path cases = UNSHARD_CASES;

struct Opened {
  std::unique_ptr<FileSystem> system = posix_file_system();
  std::unique_ptr<File> file;
  TorchContents contents;
  const TorchEntry& at(const std::string& path) const {
    for (const TorchEntry& entry : contents.entries) {
      if (entry.path == path) return entry;
    }
    throw std::runtime_error("no tensor " + path);
  }
};

Opened open(const std::string& path, std::optional<std::uint32_t> rank = std::nullopt) {
  Opened opened;
  opened.file = opened.system->open_for_reading((cases / path).string());
  opened.contents = read_torch_file(*opened.file, path, rank);
  return opened;
}

/// The tensors of a safetensors file that PyTorch wrote: name to (dtype, shape, bytes).
struct Expected {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::string bytes;
};
std::map<std::string, Expected> expected(const std::string& path) {
  std::ifstream in(cases / path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  std::uint64_t length = 0;
  std::memcpy(&length, all.data(), sizeof length);
  std::map<std::string, Expected> tensors;
  const nlohmann::json header = nlohmann::json::parse(all.substr(8, length));
  for (const auto& [name, row] : header.items()) {
    if (name == "__metadata__") continue;
    const std::uint64_t begin = row["data_offsets"][0], end = row["data_offsets"][1];
    tensors[name] = {row["dtype"], row["shape"], all.substr(8 + length + begin, end - begin)};
  }
  return tensors;
}

/// Rows [first, first + rows) of a row-major tensor.
std::string rows_of(const Expected& tensor, std::uint64_t first, std::uint64_t rows) {
  const std::uint64_t row_bytes = tensor.bytes.size() / tensor.shape[0];
  return tensor.bytes.substr(first * row_bytes, rows * row_bytes);
}

TEST(TorchFile, PlainTensorsOfTheFirstLevelHaveTheirValues) {
  const auto opened = open("hostile/pickle_protocols/protocol2/model_world_size_1_rank_0.pt");
  const auto model = expected("hostile/pickle_protocols/expected/protocol2.safetensors");
  ASSERT_EQ(opened.contents.entries.size(), model.size());
  for (const auto& [name, tensor] : model) {
    const TorchEntry& entry = opened.at(name);
    EXPECT_EQ(entry.kind, TorchEntry::Kind::tensor);
    EXPECT_EQ(entry.keys, std::vector<std::string>{name});
    EXPECT_EQ(info(entry.tensor.dtype).safetensors, tensor.dtype);
    EXPECT_EQ(entry.tensor.shape, Shape(tensor.shape));
    EXPECT_EQ(stored_bytes(*opened.file, entry.tensor), tensor.bytes) << name;
    EXPECT_TRUE(entry.tensor.has_crc);
  }
}

TEST(TorchFile, EveryPickleProtocolGivesTheSame) {
  for (const std::string protocol : {"protocol2", "protocol3", "protocol4", "protocol5"}) {
    const auto opened = open("hostile/pickle_protocols/" + protocol + "/model_world_size_1_rank_0.pt");
    const auto model = expected("hostile/pickle_protocols/expected/" + protocol + ".safetensors");
    ASSERT_EQ(opened.contents.entries.size(), model.size()) << protocol;
    for (const auto& [name, tensor] : model)
      EXPECT_EQ(stored_bytes(*opened.file, opened.at(name).tensor), tensor.bytes) << protocol << " " << name;
  }
}

TEST(TorchFile, ViewsOfOneStorageKeepOffsetAndStrides) {
  const auto opened = open("hostile/sound_views/input/model_world_size_1_rank_0.pt");
  for (const auto& [name, tensor] : expected("hostile/sound_views/expected/model.safetensors")) {
    EXPECT_EQ(stored_bytes(*opened.file, opened.at(name).tensor), tensor.bytes) << name;
  }
  EXPECT_EQ(opened.at("model.norm.weight").tensor.strides, Shape{0});
  EXPECT_EQ(opened.at("model.norm.weight").tensor.record_bytes, 4U);
  EXPECT_EQ(opened.at("model.layers.0.mlp.up_proj.weight").tensor.record_position,
            opened.at("model.layers.0.mlp.gate_proj.weight").tensor.record_position);
}

TEST(TorchFile, BigEndianRecordsAreMarked) {
  const auto opened = open("hostile/big_endian/input/model_world_size_1_rank_0.pt");
  for (const auto& [name, tensor] : expected("hostile/big_endian/expected/input.safetensors")) {
    EXPECT_TRUE(opened.at(name).tensor.big_endian);
    EXPECT_EQ(stored_bytes(*opened.file, opened.at(name).tensor), tensor.bytes) << name;
  }
}

TEST(TorchFile, Zip64FieldsAnyFolderAndMissingChecksumsAreRead) {
  for (const std::string variant : {"zip64", "folder", "no_crc"}) {
    const auto opened = open("hostile/zip64_fields_in_small_file/" + variant + "/model_world_size_1_rank_0.pt");
    for (const auto& [name, tensor] : expected("hostile/zip64_fields_in_small_file/expected/" + variant + ".safetensors")) {
      EXPECT_EQ(stored_bytes(*opened.file, opened.at(name).tensor), tensor.bytes) << variant << " " << name;
      EXPECT_EQ(opened.at(name).tensor.has_crc, variant != "no_crc");
    }
  }
}

TEST(TorchFile, TheStreamBeforeZipIsRead) {
  const auto opened = open("hostile/legacy_non_zip/input/model_world_size_1_rank_0.pt");
  const auto model = expected("hostile/legacy_non_zip/reference/model.safetensors");
  ASSERT_EQ(opened.contents.entries.size(), model.size());
  for (const auto& [name, tensor] : model) EXPECT_EQ(stored_bytes(*opened.file, opened.at(name).tensor), tensor.bytes) << name;
}

TEST(TorchFile, FsdpRowsOfARankAreDTensorsShardedAlongDimensionZero) {
  const auto model = expected("fsdp/uneven_5_over_2/expected/model.safetensors");
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    const auto opened = open("fsdp/uneven_5_over_2/input/model_world_size_2_rank_" + std::to_string(rank) + ".pt");
    const TorchEntry& entry = opened.at("model.layers.0.self_attn.k_proj.weight");
    ASSERT_EQ(entry.kind, TorchEntry::Kind::dtensor);
    const StoredDTensor& tensor = *entry.dtensor;
    EXPECT_EQ(tensor.global_shape, (Shape{5, 10}));
    EXPECT_EQ(tensor.mesh_sizes, std::vector<std::uint64_t>{2});
    EXPECT_EQ(tensor.coordinate, std::vector<std::uint64_t>{rank});
    ASSERT_EQ(tensor.placements.size(), 1U);
    EXPECT_EQ(tensor.placements[0].kind, Placement::Kind::shard);
    EXPECT_EQ(tensor.placements[0].dim, 0U);
    EXPECT_EQ(tensor.local.shape, (Shape{rank == 0 ? 3U : 2U, 10}));
    EXPECT_EQ(stored_bytes(*opened.file, tensor.local), rows_of(model.at(entry.path), rank * 3, rank == 0 ? 3 : 2));
  }
}

TEST(TorchFile, APaddedLocalTensorIsSmallerThanItsRecord) {
  const auto opened = open("fsdp/uneven_5_over_2/input/model_world_size_2_rank_1.pt");
  const StoredTensor& local = opened.at("model.layers.0.self_attn.k_proj.weight").dtensor->local;
  EXPECT_GT(local.record_bytes, volume(local.shape) * info(local.dtype).size_bytes);
}

TEST(TorchFile, TensorParallelMeshesHaveTwoDimensionsAndStridedShards) {
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    const auto opened = open("fsdp/tensor_parallel_2x2/input/model_world_size_4_rank_" + std::to_string(rank) + ".pt");
    const StoredDTensor& rows = *opened.at("model.embed_tokens.weight").dtensor;
    EXPECT_EQ(rows.mesh_sizes, (std::vector<std::uint64_t>{2, 2}));
    EXPECT_EQ(rows.coordinate, (std::vector<std::uint64_t>{rank / 2, rank % 2}));
    EXPECT_EQ(rows.placements[0].kind, Placement::Kind::strided_shard);
    EXPECT_EQ(rows.placements[0].split_factor, 2U);
    EXPECT_EQ(rows.placements[1].kind, Placement::Kind::shard);
    EXPECT_TRUE(rows.shard_order.empty());
    const StoredDTensor& norm = *opened.at("model.layers.0.input_layernorm.weight").dtensor;  // left alone by the tensor-parallel plan
    EXPECT_EQ(norm.mesh_sizes, std::vector<std::uint64_t>{2});
    EXPECT_EQ(norm.coordinate, std::vector<std::uint64_t>{rank / 2});
  }
}

TEST(TorchFile, HybridShardingHasAReplicatedDimension) {
  const auto opened = open("fsdp/hybrid_2x2/input/model_world_size_4_rank_3.pt");
  const StoredDTensor& tensor = *opened.at("model.embed_tokens.weight").dtensor;
  EXPECT_EQ(tensor.placements[0].kind, Placement::Kind::replicate);
  EXPECT_EQ(tensor.placements[1].kind, Placement::Kind::shard);
  EXPECT_EQ(tensor.coordinate, (std::vector<std::uint64_t>{1, 1}));
}

TEST(TorchFile, StridedLocalTensorsAreGathered) {
  const auto model = expected("fsdp/strided_locals/expected/model.safetensors");
  const auto opened = open("fsdp/strided_locals/input/model_world_size_2_rank_1.pt");
  for (const TorchEntry& entry : opened.contents.entries) {
    const Expected& whole = model.at(entry.path);
    if (entry.kind == TorchEntry::Kind::tensor) {
      EXPECT_EQ(stored_bytes(*opened.file, entry.tensor), whole.bytes) << entry.path;
    } else {
      const std::uint64_t rows = entry.dtensor->local.shape[0];
      EXPECT_EQ(stored_bytes(*opened.file, entry.dtensor->local), rows_of(whole, whole.shape[0] - rows, rows)) << entry.path;
    }
  }
}

TEST(TorchFile, ElementTypesAreThoseOfTheTensors) {
  const auto opened = open("fsdp/many_dtypes/input/model_world_size_2_rank_0.pt");
  EXPECT_EQ(opened.at("model.layers.0.mlp.steps").tensor.dtype, DType::i64);
  EXPECT_EQ(opened.at("model.layers.0.mlp.steps").tensor.shape, Shape{});
  EXPECT_EQ(opened.at("model.layers.0.mlp.active").dtensor->local.dtype, DType::boolean);
  EXPECT_EQ(opened.at("model.layers.0.mlp.codes").tensor.dtype, DType::u8);
  EXPECT_EQ(opened.at("model.layers.1.mlp.table").dtensor->local.dtype, DType::f8_e4m3);
  EXPECT_EQ(opened.at("model.layers.1.mlp.halves").tensor.dtype, DType::f16);
  EXPECT_EQ(opened.at("model.layers.1.mlp.brain").tensor.dtype, DType::bf16);
  EXPECT_EQ(opened.at("model.layers.1.mlp.small").tensor.dtype, DType::i8);
  EXPECT_EQ(opened.at("model.layers.1.mlp.index").tensor.dtype, DType::i32);
}

TEST(TorchFile, ShardedTensorsStateTheirOffsets) {
  const auto model = expected("fsdp/fsdp1_two_ranks/expected/model.safetensors");
  const auto opened = open("fsdp/fsdp1_two_ranks/input/model_world_size_2_rank_1.pt");
  ASSERT_EQ(opened.contents.entries.size(), model.size());
  for (const TorchEntry& entry : opened.contents.entries) {
    ASSERT_EQ(entry.kind, TorchEntry::Kind::sharded_tensor);
    EXPECT_EQ(entry.sharded->world_size, 2U);
    EXPECT_EQ(entry.sharded->global_shape, Shape(model.at(entry.path).shape));
    for (const auto& shard : entry.sharded->shards) {
      EXPECT_EQ(stored_bytes(*opened.file, shard.tensor), rows_of(model.at(entry.path), shard.offset[0], shard.extent[0])) << entry.path;
    }
  }
}

TEST(TorchFile, FlatParametersAreOneDimensionalShardedTensors) {
  const auto opened = open("fsdp/fsdp1_local_state_dict/input/model_world_size_2_rank_1.pt");
  const StoredShardedTensor& flat = *opened.at("model.layers.0._flat_param").sharded;
  EXPECT_EQ(flat.global_shape, Shape{1952});
  EXPECT_EQ(flat.shards.at(0).offset, Shape{976});
}

TEST(TorchFile, ForeignObjectsAreNamedAndTheWeightsStay) {
  const auto opened = open("hostile/foreign_objects/protocol4/model_world_size_1_rank_0.pt");
  for (const auto& [name, tensor] : expected("hostile/foreign_objects/expected/protocol4.safetensors")) {
    EXPECT_EQ(stored_bytes(*opened.file, opened.at(name).tensor), tensor.bytes) << name;
  }
  std::map<std::string, std::string> objects;
  for (const ObjectNote& note : opened.contents.objects) objects.emplace(note.key, note.what);
  EXPECT_EQ(objects.at("args"), "argparse.Namespace");
  EXPECT_EQ(objects.at("meta.color"), "__main__.Color call");
  EXPECT_EQ(objects.at("meta.np_scalar"), "numpy._core.multiarray.scalar call");
  EXPECT_EQ(objects.count("meta.size") + objects.count("meta.set") + objects.count("meta.complex") + objects.count("meta.big"), 0U);
}

TEST(TorchFile, CodeIsNamedAndNotRun) {
  const std::map<std::string, std::string> names{{"os_system", "posix.system call"},
                                                 {"eval", "builtins.eval call"},
                                                 {"exec", "builtins.exec call"},
                                                 {"popen", "subprocess.Popen call"},
                                                 {"open", "io.open call"}};
  for (const auto& [variant, what] : names) {
    const auto opened = open("hostile/code_in_spare_object/" + variant + "/model_world_size_1_rank_0.pt");
    ASSERT_EQ(opened.contents.objects.size(), 1U) << variant;
    EXPECT_EQ(opened.contents.objects[0].key, "extra");
    EXPECT_EQ(opened.contents.objects[0].what, what);
    EXPECT_FALSE(std::filesystem::exists("unshard_marker"));
  }
}

TEST(TorchFile, CyclesAndDeepNestingEnd) {
  EXPECT_FALSE(open("hostile/memo_and_cycles/cycles/model_world_size_1_rank_0.pt").contents.entries.empty());
  EXPECT_FALSE(open("hostile/memo_and_cycles/many/model_world_size_1_rank_0.pt").contents.entries.empty());
  EXPECT_FALSE(open("hostile/deep_nesting/tuples/model_world_size_1_rank_0.pt").contents.entries.empty());
}

}  // namespace
}  // namespace unshard
