#!/usr/bin/env python3
"""Makes a Hugging Face folder with the names and shapes of a very large model and no data: headers, and holes where the weights would be.

    bench/make_synthetic.py --model moe671b|dense405b --shards 512 --out DIR

For planning: `unshard merge --dry-run --ranks 512 --local-dir DIR --target-dir …` reads headers only. The files have their full length (1.3 TB and 0.8 TB) and take a
few megabytes of a file system that has sparse files.
"""
import argparse
import json
import struct
from pathlib import Path


def moe671b():
    """DeepSeek-V3: 61 layers, 3 of them dense, 256 experts of which every layer also has a shared one."""
    hidden, dense, expert, vocabulary, heads = 7168, 18432, 2048, 129280, 128
    config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": hidden, "intermediate_size": dense,
              "moe_intermediate_size": expert, "num_hidden_layers": 61, "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": vocabulary,
              "n_routed_experts": 256, "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
              "qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    yield config
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(61):
        base = f"model.layers.{layer}."
        yield base + "self_attn.q_a_proj.weight", (1536, hidden)
        yield base + "self_attn.q_a_layernorm.weight", (1536,)
        yield base + "self_attn.q_b_proj.weight", (heads * 192, 1536)
        yield base + "self_attn.kv_a_proj_with_mqa.weight", (576, hidden)
        yield base + "self_attn.kv_a_layernorm.weight", (512,)
        yield base + "self_attn.kv_b_proj.weight", (heads * 256, 512)
        yield base + "self_attn.o_proj.weight", (hidden, heads * 128)
        yield base + "input_layernorm.weight", (hidden,)
        yield base + "post_attention_layernorm.weight", (hidden,)
        parts = [("mlp.", dense)] if layer < 3 else [("mlp.shared_experts.", expert)] + [(f"mlp.experts.{e}.", expert) for e in range(256)]
        for part, width in parts:
            yield base + part + "gate_proj.weight", (width, hidden)
            yield base + part + "up_proj.weight", (width, hidden)
            yield base + part + "down_proj.weight", (hidden, width)
        if layer >= 3:
            yield base + "mlp.gate.weight", (256, hidden)
            yield base + "mlp.gate.e_score_correction_bias", (256,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def dense405b():
    """Llama 3.1 405B."""
    hidden, width, vocabulary = 16384, 53248, 128256
    yield {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": width, "num_hidden_layers": 126,
           "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": vocabulary, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(126):
        base = f"model.layers.{layer}."
        for name, rows, columns in (("self_attn.q_proj", hidden, hidden), ("self_attn.k_proj", 1024, hidden), ("self_attn.v_proj", 1024, hidden),
                                    ("self_attn.o_proj", hidden, hidden), ("mlp.gate_proj", width, hidden), ("mlp.up_proj", width, hidden),
                                    ("mlp.down_proj", hidden, width)):
            yield f"{base}{name}.weight", (rows, columns)
        yield base + "input_layernorm.weight", (hidden,)
        yield base + "post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def write_shard(path, tensors):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        size = 2
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("moe671b", "dense405b"), required=True)
    parser.add_argument("--shards", type=int, default=512)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    config, *tensors = globals()[options.model]()
    (options.out / "config.json").write_text(json.dumps(config))
    index = {}
    for shard in range(options.shards):
        mine = tensors[len(tensors) * shard // options.shards:len(tensors) * (shard + 1) // options.shards]
        name = f"model-{shard + 1:05}-of-{options.shards:05}.safetensors"
        write_shard(options.out / name, mine)
        index.update({tensor: name for tensor, _ in mine})
    (options.out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    print(f"{len(tensors)} tensors in {options.shards} files")


if __name__ == "__main__":
    main()
