// Casts between f64, f32, f16 and bf16, with the bits that PyTorch's CPU cast of a contiguous tensor gives (tests/data/cast.py).
//
// Every cast goes through f32, as c10::Half and c10::BFloat16 do (c10/util/Half.h, BFloat16.h): so f64 to a 16-bit type rounds twice, each
// time to nearest even. NaN stays NaN: f16 keeps the sign and the upper payload bits, quietened, as vcvtps2ph does; bf16 is 0xffff from f32
// and f64 (ATen/cpu/vec) and 0x7fc0 from f16 (c10).
#pragma once

#include <cstddef>
#include <span>

#include "unshard/tensor.h"

namespace unshard {

/// Local. Elements of `from` (little-endian, of `from_type`) become elements of `to`, as many as `from` holds; both need no alignment and
/// don't overlap. With equal types a copy. Throws Error(internal) for a pair of types that isn't castable or sizes that don't fit.
void cast(std::span<const std::byte> from, DType from_type, std::span<std::byte> to, DType to_type);

/// Local. Reverses the bytes of each unit of `unit_bytes` (DTypeInfo::swap_bytes): big-endian to little-endian and back.
void swap_bytes(std::span<std::byte> data, std::size_t unit_bytes);

}  // namespace unshard
