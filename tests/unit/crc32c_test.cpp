// CRC-32C against published values, and the joining of two checksums against the checksum of the whole.
#include "crc32c.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace unshard {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Crc32c, GivesThePublishedValues) {
  // RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283U);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43U);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Crc32c, GoesOnFromWhatLiesBefore) {
  EXPECT_EQ(crc32c(bytes_of("6789"), crc32c(bytes_of("12345"))), 0xe3069283U);
}

TEST(Crc32c, JoinsNeighbours) {
  std::vector<std::byte> data(5000);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * i >> 3);
  const std::span<const std::byte> all(data);
  for (std::size_t cut : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{2500}, std::size_t{4999}, data.size()})
    EXPECT_EQ(crc32c_joined(crc32c(all.first(cut)), crc32c(all.subspan(cut)), data.size() - cut), crc32c(all)) << cut;
}

}  // namespace
}  // namespace unshard
