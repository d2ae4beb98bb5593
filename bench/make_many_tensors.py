#!/usr/bin/env python3
"""A Hugging Face folder with the headers of a very large model and no data on the disk: 163 files, 46,000 tensors, an index. The files are sparse.

    make_many_tensors.py --out /data/tensors [--files 163] [--tensors 46000] [--bytes 4194304]
"""
import argparse
import json
import struct
from pathlib import Path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--files", type=int, default=163)
    parser.add_argument("--tensors", type=int, default=46000)
    parser.add_argument("--bytes", type=int, default=4 << 20, help="of each tensor")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    weight_map = {}
    names = [f"model.layers.{i // 768}.mlp.experts.{i // 3 % 256}.{('gate', 'up', 'down')[i % 3]}_proj.weight" for i in range(options.tensors)]
    for number in range(options.files):
        here = names[number * options.tensors // options.files:(number + 1) * options.tensors // options.files]
        file = f"model-{number + 1:05d}-of-{options.files:05d}.safetensors"
        header = {"__metadata__": {"format": "pt"}}
        for place, name in enumerate(here):
            header[name] = {"dtype": "BF16", "shape": [2048, options.bytes // 4096], "data_offsets": [place * options.bytes, (place + 1) * options.bytes]}
            weight_map[name] = file
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(options.out / file, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + len(here) * options.bytes)
    index = {"metadata": {"total_size": options.tensors * options.bytes}, "weight_map": weight_map}
    (options.out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    (options.out / "config.json").write_text(json.dumps({"model_type": "bench"}))


if __name__ == "__main__":
    main()
