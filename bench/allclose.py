#!/usr/bin/env python3
"""The peer of `unshard test`: a loop over two Hugging Face folders with torch.allclose.

    allclose.py MERGED REFERENCE [--atol 1e-5] [--rtol 1e-5]
"""
import argparse
import sys
from pathlib import Path

import torch
from safetensors import safe_open


def tensors(folder):
    """-> name: open file"""
    files = [safe_open(file, "pt") for file in sorted(Path(folder).glob("*.safetensors"))]
    return {name: file for file in files for name in file.keys()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("merged")
    parser.add_argument("reference")
    parser.add_argument("--atol", type=float, default=1e-5)
    parser.add_argument("--rtol", type=float, default=1e-5)
    options = parser.parse_args()
    merged, reference = tensors(options.merged), tensors(options.reference)
    if merged.keys() != reference.keys():
        sys.exit("the names differ")
    for name in reference:
        if not torch.allclose(merged[name].get_tensor(name), reference[name].get_tensor(name), rtol=options.rtol, atol=options.atol, equal_nan=True):
            sys.exit(f"{name} differs")


if __name__ == "__main__":
    main()
