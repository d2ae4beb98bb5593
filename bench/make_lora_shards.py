#!/usr/bin/env python3
"""FSDP2 rank files of a model that was trained with LoRA, as PEFT names its tensors: every projection has its weight under `base_layer`, and an adapter beside it.

    make_lora_shards.py --model qwen2.5-0.5b --ranks 8 --lora-rank 16 --out DIR

Values and containers are those of make_checkpoint.py. The adapter's alpha is nowhere stated: merge needs --lora-alpha.
"""
import argparse
import os
from collections import OrderedDict

import torch

import make_checkpoint


class WithAdapter(make_checkpoint.Model):
    def __init__(self, name, rank):
        super().__init__(name, dtype=torch.float32)
        self.stated = super().config(torch.bfloat16)
        self.tied = False  # the head has no entry of its own
        shapes = OrderedDict()
        for key, shape in self.shapes.items():
            stem, kind = ("base_model.model." + key).rsplit(".", 1)
            if stem.rsplit(".", 1)[1] in make_checkpoint.LORA_TARGETS:
                shapes[f"{stem}.base_layer.{kind}"] = shape
                if kind == "weight":
                    shapes[f"{stem}.lora_A.default.weight"], shapes[f"{stem}.lora_B.default.weight"] = (rank, shape[1]), (shape[0], rank)
            else:
                shapes[f"{stem}.{kind}"] = shape
        self.shapes = shapes

    def config(self, dtype):
        return self.stated


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--lora-rank", type=int, default=16)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    options.reference_torch_dtype, options.optimizer = torch.bfloat16, False
    os.makedirs(options.out)
    make_checkpoint.write_fsdp(options, WithAdapter(options.model, options.lora_rank), 2)


if __name__ == "__main__":
    main()
