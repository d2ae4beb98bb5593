// Hand-made safetensors files: the header as written in the test, then the data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace unshard::testing {

inline std::string safetensors(const std::string& header, const std::string& data = "") {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + header + data;
}

/// Little-endian bytes of numbers.
template <class Number>
std::string bytes_of(std::initializer_list<Number> numbers) {
  std::string out;
  for (const Number number : numbers) out.append(reinterpret_cast<const char*>(&number), sizeof number);
  return out;
}

inline void write_file(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace unshard::testing
