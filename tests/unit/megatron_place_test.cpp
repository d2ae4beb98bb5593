// Where the local tensors of tensor-parallel ranks lie in global ones, for the placements that need numbers.
#include "formats/megatron_place.h"

#include <gtest/gtest.h>

#include <map>

#include "unshard/tensor.h"

namespace unshard {
namespace {

/// A checkpoint of tensor-parallel ranks only, whose every file holds one tensor of `shape` at byte 1000.
struct Ranks {
  Source source;
  std::vector<std::vector<std::byte>> about;
  std::vector<std::pair<FileId, ShardContents>> files;

  Ranks(std::uint64_t ranks, const std::string& name, const Shape& shape, const std::string& placement) {
    source.names.placements = {{"*." + name, placement}};
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      ShardFile file;
      file.path = "run/mp_rank_0" + std::to_string(rank) + "/model_optim_rng.pt";
      file.label = file.path;
      source.files.push_back(file);
      MegatronFile one;
      one.args.emplace();
      one.args->tensor = ranks;
      one.args->layers = 1;
      one.chunk_layers = {1};
      about.push_back(encode(one));
      Piece piece{"0:decoder.layers.0." + name, DType::bf16, shape, {}};
      piece.chunks.emplace_back();
      piece.chunks.back().box = whole(shape);
      piece.chunks.back().position = 1000;
      piece.chunks.back().strides = row_major_strides(shape);
      ShardContents contents;
      contents.pieces.push_back(std::move(piece));
      files.emplace_back(static_cast<FileId>(rank), std::move(contents));
    }
    place_megatron_pieces(source, about, files);
  }

  /// `name shape offset@position` of every piece of a rank.
  [[nodiscard]] std::vector<std::string> pieces_of(std::size_t rank) const {
    std::vector<std::string> found;
    for (const Piece& piece : files[rank].second.pieces) {
      std::string text = piece.name + " " + to_string(piece.shape);
      for (const Chunk& chunk : piece.chunks)
        text += " " + to_string(chunk.box.offset) + "+" + to_string(chunk.box.extent) + "@" + std::to_string(chunk.position);
      found.push_back(text);
    }
    return found;
  }
  [[nodiscard]] std::string finding(std::size_t rank) const {
    return files[rank].second.findings.empty() ? "" : files[rank].second.findings.front().text;
  }
};

using Texts = std::vector<std::string>;

TEST(MegatronPlace, PartsOfARankBecomeTensorsOfTheirOwn) {
  // 3 rows of q, 1 of b on each of two ranks: 8 rows in all, 2 columns of 2 bytes.
  const Ranks ranks(2, "self_attention.in_proj.weight", {4, 2}, "parts query=6 beta=2");
  EXPECT_EQ(ranks.pieces_of(0), (Texts{"decoder.layers.0.self_attention.in_proj.weight.query [6, 2] [0, 0]+[3, 2]@1000",
                                       "decoder.layers.0.self_attention.in_proj.weight.beta [2, 2] [0, 0]+[1, 2]@1012"}));
  EXPECT_EQ(ranks.pieces_of(1), (Texts{"decoder.layers.0.self_attention.in_proj.weight.query [6, 2] [3, 0]+[3, 2]@1000",
                                       "decoder.layers.0.self_attention.in_proj.weight.beta [2, 2] [1, 0]+[1, 2]@1012"}));
}

TEST(MegatronPlace, PartsAreTakenApartOnOneRankToo) {
  const Ranks ranks(1, "mixer.conv1d.bias", {5}, "parts x=3 B=1 C=1");
  EXPECT_EQ(ranks.pieces_of(0),
            (Texts{"decoder.layers.0.mixer.conv1d.bias.x [3] [0]+[3]@1000", "decoder.layers.0.mixer.conv1d.bias.B [1] [0]+[1]@1006",
                   "decoder.layers.0.mixer.conv1d.bias.C [1] [0]+[1]@1008"}));
}

TEST(MegatronPlace, PartsThatDoNotFitAreRefused) {
  for (const char* parts : {"parts query=8 beta=2", "parts query=4 beta=2", "parts query=5 beta=3"}) {
    const Ranks ranks(2, "self_attention.in_proj.weight", {4, 2}, parts);
    EXPECT_NE(ranks.finding(0).find("shape [4, 2] on 2 tensor-parallel ranks does not hold"), std::string::npos) << parts;
    EXPECT_NE(ranks.finding(0).find("query "), std::string::npos);
  }
}

TEST(MegatronPlace, ATensorOfKnownRowsIsWholeCutOrRepeated) {
  const std::string name = "self_attention.k_layernorm.weight", global = "decoder.layers.0." + name + " [8] ";
  const Ranks whole_ones(4, name, {8}, "rows 8");
  EXPECT_EQ(whole_ones.pieces_of(3), (Texts{global + "[0]+[8]@1000"}));
  const Ranks cut(4, name, {2}, "rows 8");
  EXPECT_EQ(cut.pieces_of(3), (Texts{global + "[6]+[2]@1000"}));
  const Ranks repeated(4, name, {4}, "rows 8");  // two groups on four ranks: neighbours have the same
  EXPECT_EQ(repeated.pieces_of(1), (Texts{global + "[0]+[4]@1000"}));
  EXPECT_EQ(repeated.pieces_of(2), (Texts{global + "[4]+[4]@1000"}));
  const Ranks misfit(4, name, {3}, "rows 8");
  EXPECT_NE(misfit.finding(0).find("shape [3] on 4 tensor-parallel ranks is no part of 8 rows"), std::string::npos);
}

}  // namespace
}  // namespace unshard
