// Casts between floating types, against what PyTorch gives (tests/data/cast.json, made by cast.py).
#include "cast.h"

#include <gtest/gtest.h>
#include <isa-l.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "unshard/error.h"

namespace unshard {
namespace {

using Data = std::vector<std::byte>;

const nlohmann::json& expected() {
  static const nlohmann::json data = nlohmann::json::parse(std::ifstream(UNSHARD_CASES "/../data/cast.json"));
  return data;
}

DType type_of(const nlohmann::json& name) {
  return dtype_from_torch(name.get<std::string>()).value();
}

void append(Data& to, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) to.push_back(static_cast<std::byte>(value >> (8 * i)));
}

Data from_hexadecimal(const nlohmann::json& values, DType type) {
  Data data;
  for (const auto& value : values) append(data, std::stoull(value.get<std::string>(), nullptr, 16), info(type).size_bytes);
  return data;
}

Data casted(const Data& from, DType from_type, DType to_type) {
  Data to(from.size() / info(from_type).size_bytes * info(to_type).size_bytes);
  cast(from, from_type, to, to_type);
  return to;
}

std::uint32_t zip_crc(const Data& data) {
  return crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(data.data()), data.size());
}

TEST(Cast, EveryValueOfThe16BitTypesBecomesWhatPyTorchMakesOfIt) {
  Data all;
  for (std::uint64_t bits = 0; bits < 65536; ++bits) append(all, bits, 2);
  ASSERT_EQ(expected()["all"].size(), 6U);
  for (const auto& row : expected()["all"]) EXPECT_EQ(zip_crc(casted(all, type_of(row["from"]), type_of(row["to"]))), row["crc32"]) << row;
}

TEST(Cast, EdgesOfF32AndF64RoundAsInPyTorch) {
  for (const auto& row : expected()["edges"]) {
    const DType from = type_of(row["from"]), to = type_of(row["to"]);
    for (std::size_t i = 0; i < row["bits"].size(); ++i) {
      const auto one = [&](const char* key, DType type) { return from_hexadecimal({row[key][i]}, type); };
      EXPECT_EQ(casted(one("bits", from), from, to), one("become", to)) << row["bits"][i] << " of " << row["from"] << " to " << row["to"];
    }
  }
}

TEST(Cast, RandomBitsBecomeWhatPyTorchMakesOfThem) {
  for (const auto& row : expected()["random"]) {
    const DType from = type_of(row["from"]);
    Data data;
    std::uint64_t x = 1;
    for (std::size_t i = 0; i < row["count"]; ++i) {
      x = x * 6364136223846793005U + 1442695040888963407U;
      append(data, from == DType::f32 ? x >> 32 : x, info(from).size_bytes);
    }
    EXPECT_EQ(zip_crc(casted(data, from, type_of(row["to"]))), row["crc32"]) << row;
  }
}

TEST(Cast, NeedsNoAlignment) {
  const auto& row = expected()["edges"][2];
  ASSERT_EQ(row["to"], "bfloat16");
  const Data from = from_hexadecimal(row["bits"], DType::f32), to = from_hexadecimal(row["become"], DType::bf16);
  Data shifted(from.size() + 1), result(to.size() + 1);
  std::memcpy(shifted.data() + 1, from.data(), from.size());
  cast(std::span(shifted).subspan(1), DType::f32, std::span(result).subspan(1), DType::bf16);
  EXPECT_EQ(Data(result.begin() + 1, result.end()), to);
}

TEST(Cast, EqualTypesAreACopyWhateverTheBits) {
  Data data;
  for (std::uint64_t bits : {0x7f800001U, 0xffffffffU, 0x12345678U}) append(data, bits, 4);
  EXPECT_EQ(casted(data, DType::f32, DType::f32), data);
  EXPECT_EQ(casted(data, DType::f8_e4m3, DType::f8_e4m3), data);
}

TEST(Cast, RefusesIntegersAndSizesThatDontFit) {
  Data four(4), two(2);
  EXPECT_THROW(cast(four, DType::i32, four, DType::f32), Error);
  EXPECT_THROW(cast(four, DType::f32, four, DType::bf16), Error);
  EXPECT_THROW(cast(std::span(four).first(3), DType::f32, two, DType::bf16), Error);
}

TEST(SwapBytes, ReversesEachUnit) {
  const auto swapped = [](std::uint64_t value, std::size_t unit) {
    Data data, expected_bytes;
    append(data, value, 8);
    swap_bytes(data, unit);
    std::uint64_t result = 0;
    std::memcpy(&result, data.data(), 8);
    return result;
  };
  EXPECT_EQ(swapped(0x0102030405060708, 1), 0x0102030405060708U);
  EXPECT_EQ(swapped(0x0102030405060708, 2), 0x0201040306050807U);
  EXPECT_EQ(swapped(0x0102030405060708, 4), 0x0403020108070605U);
  EXPECT_EQ(swapped(0x0102030405060708, 8), 0x0807060504030201U);
}

}  // namespace
}  // namespace unshard
