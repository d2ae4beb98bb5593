#include <unshard/tensor.h>

#include <cstdio>

int main() {
  const auto bf16 = unshard::dtype_from_safetensors("BF16");
  std::puts(bf16 ? unshard::to_string(unshard::Shape{2, 3}).c_str() : "no bf16");
  return bf16 ? 0 : 1;
}
