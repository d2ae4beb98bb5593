#!/usr/bin/env python3
"""Writes cast.json: what PyTorch's cast of contiguous CPU tensors gives, for tests/unit/cast_test.cpp.

Run with torch on an x86-64 machine with AVX2.

all: for each 16-bit type and each other type, the CRC-32 (zlib) of the casts of all 65,536 values in order of their bits, as
little-endian bytes.
edges: bits of single values and of what they become.
random: the CRC-32 of the casts of bits from a linear congruential generator, x = x * 6364136223846793005 + 1442695040888963407
(mod 2^64), from x = 1; f64 takes x, f32 its upper half.
"""
import json
import struct
import sys
import zlib

import torch

TYPES = {"float64": (torch.float64, 8), "float32": (torch.float32, 4), "float16": (torch.float16, 2), "bfloat16": (torch.bfloat16, 2)}
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def from_bits(bits, name):
    dtype, size = TYPES[name]
    sign = 1 << (8 * size - 1)
    return torch.tensor([b - 2 * sign if b & sign else b for b in bits], dtype=INTEGERS[size]).view(dtype)


def become(bits, source, target):
    """The casts, without the last few elements of a tensor: they take a scalar path, where NaN becomes another one."""
    return from_bits(list(bits) + [0] * 64, source).to(TYPES[target][0])[:len(bits)]


def little_endian(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def hexadecimal(tensor):
    size = tensor.element_size()
    data = little_endian(tensor)
    return [format(int.from_bytes(data[i:i + size], "little"), f"0{2 * size}x") for i in range(0, len(data), size)]


def f32(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def f64(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def near(bits):
    return [bits - 1, bits, bits + 1]


def edges_f32():
    values = [0.0, 1.0, 65504.0, 65519.99, 65520.0, 65536.0, 2.0**-14, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 2.0**-126, 1 + 2.0**-11,
              1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.3895313892515355e38]
    bits = [b for v in values for b in (near(f32(v)) if v else [0, 1])]
    bits += [0x7f7fffff, 0x7f7f7fff, 0x7f7f8000, 0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fc02000, 0x7fffffff, 0x007fffff]
    bits += [0x00008000, 0x00018000]
    return bits + [b | 1 << 31 for b in bits]


def edges_f64():
    values = [0.0, 1.0, 65520.0, 2.0**-14, 2.0**-25, 2.0**-149, 2.0**-150, 3.4028235677973366e38, 1 + 2.0**-8, 1 + 2.0**-8 + 2.0**-40,
              1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-24, 1 + 3 * 2.0**-24, 1e300]
    bits = [b for v in values for b in (near(f64(v)) if v else [0, 1])]
    bits += [0x7fefffffffffffff, 0x7ff0000000000000, 0x7ff0000000000001, 0x7ff8000000000000, 0x7ffabcdef0123456, 0x7fffffffffffffff]
    return bits + [b | 1 << 63 for b in bits]


def generated(count):
    x, out = 1, []
    for _ in range(count):
        x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(x)
    return out


def crc_of_casts(bits, source, target):
    return zlib.crc32(little_endian(become(bits, source, target)))


def edge_row(bits, source, target):
    return {"from": source, "to": target, "bits": hexadecimal(from_bits(bits, source)), "become": hexadecimal(become(bits, source, target))}


def main(path):
    x = generated(100_003)
    inputs = (("float32", edges_f32(), [v >> 32 for v in x]), ("float64", edges_f64(), x))
    result = {
        "torch": torch.__version__,
        "all": [{"from": s, "to": t, "crc32": crc_of_casts(range(65536), s, t)} for s in ("float16", "bfloat16") for t in TYPES if t != s],
        "edges": [edge_row(edges, s, t) for s, edges, _ in inputs for t in TYPES if t != s],
        "random": [{"from": s, "to": t, "count": len(random), "crc32": crc_of_casts(random, s, t)}
                   for s, _, random in inputs for t in TYPES if t != s],
    }
    with open(path, "w") as out:
        parts = []
        for key, value in result.items():
            text = json.dumps(value) if isinstance(value, str) else "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
            parts.append(f'"{key}": {text}')
        out.write("{\n" + ",\n".join(parts) + "\n}\n")


main(sys.argv[1] if len(sys.argv) > 1 else "cast.json")
