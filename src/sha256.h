// SHA-256 piece by piece, by OpenSSL: to compare what ranks hold without sending it.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "unshard/error.h"

namespace unshard {

using Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    if (!context_) throw std::bad_alloc();
    require(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
  }
  void add(std::span<const std::byte> bytes) { require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size())); }
  /// Once, at the end.
  [[nodiscard]] Digest digest() {
    Digest result{};
    unsigned int length = 0;
    require(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(result.data()), &length));
    return result;
  }

 private:
  static void require(int result) {
    if (result != 1) throw Error(ErrorCode::internal, "OpenSSL's SHA-256 failed");
  }
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

/// In lower-case hexadecimal digits.
[[nodiscard]] inline std::string hexadecimal(const Digest& digest) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : digest) {
    text += digits[std::to_integer<unsigned>(byte) >> 4U];
    text += digits[std::to_integer<unsigned>(byte) & 15U];
  }
  return text;
}

[[nodiscard]] inline Digest sha256(std::span<const std::byte> bytes) {
  Sha256 sha;
  sha.add(bytes);
  return sha.digest();
}

[[nodiscard]] inline std::string sha256_hex(std::string_view text) {
  return hexadecimal(sha256(std::as_bytes(std::span(text))));
}

}  // namespace unshard
