// Messages between ranks as text, so that a test shows what it sends.
#pragma once

#include <cstring>
#include <string>

#include "unshard/comm.h"

namespace unshard::testing {

inline Bytes bytes_of(const std::string& text) {
  Bytes bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

inline std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace unshard::testing
