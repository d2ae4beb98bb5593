#include "digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "unshard/error.h"

namespace unshard {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    if (!context_) throw std::bad_alloc();
    require(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
  }

  void add(const void* data, std::size_t size_bytes) { require(EVP_DigestUpdate(context_.get(), data, size_bytes)); }

  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int length = 0;
    require(EVP_DigestFinal_ex(context_.get(), digest.data(), &length));
    constexpr std::string_view digits = "0123456789abcdef";
    std::string text;
    for (unsigned int i = 0; i < length; ++i) {
      text += digits[digest[i] >> 4U];
      text += digits[digest[i] & 15U];
    }
    return text;
  }

 private:
  static void require(int result) {
    if (result != 1) throw Error(ErrorCode::internal, "OpenSSL's SHA-256 failed");
  }
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

}  // namespace

std::string sha256_hex(std::string_view text) {
  Sha256 sha;
  sha.add(text.data(), text.size());
  return sha.hex();
}

std::string sha256_hex(File& file) {
  Sha256 sha;
  std::vector<std::byte> piece(std::size_t{1} << 20U);
  const std::uint64_t size_bytes = file.size();
  for (std::uint64_t position = 0; position < size_bytes;) {
    const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), size_bytes - position));
    file.read_at(position, std::span(piece).first(length));
    sha.add(piece.data(), length);
    position += length;
  }
  return sha.hex();
}

}  // namespace unshard
