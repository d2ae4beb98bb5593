#!/usr/bin/env python3
"""Writes cases of Megatron's format `torch` for models with linear attention or Mamba layers: megatron_hybrid.py OUTPUT_FOLDER

Megatron makes these layers on a GPU only, so the slices of each tensor-parallel rank are cut here, by hand, as megatron/core/ssm (gated_delta_net, mamba_mixer) lays them out: a rank has
[q; k; v; z; b; a] of its heads in one matrix, [z; x; B; C; dt] of Mamba. The published model is what transformers saves. Needs torch and transformers.
"""
import argparse
import json
import sys
from collections import OrderedDict
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

TP, PADDED = 2, 64
COMMON = dict(vocab_size=50, hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=4, max_position_embeddings=64,
              pad_token_id=0, bos_token_id=1, eos_token_id=2, dtype="bfloat16")


def cut(t, rank, dim=0):
    return t.chunk(TP, dim)[rank].clone()


def parts(tensors, rank):
    return torch.cat([cut(t, rank) for t in tensors])


def vocabulary(t, rank):
    return cut(torch.cat([t, torch.randn(PADDED - t.shape[0], t.shape[1]).to(t.dtype)]), rank)


def by_group(q, k, v, groups):
    """q is a list of what a group has before its k and v."""
    split = [t.view(groups, -1, t.shape[-1]) for t in (*q, k, v)]
    return torch.cat(split, 1).reshape(-1, k.shape[-1])


def experts(hf, at, names, rank, out):
    """Every tensor-parallel rank has its share of all experts."""
    for e in range(4):
        first = [hf[f"{at}.experts.{e}.{name}.weight"] for name in names]
        out[0][f"{out[1]}.mlp.experts.local_experts.{e}.linear_fc1.weight"] = parts(first, rank)
        out[0][f"{out[1]}.mlp.experts.local_experts.{e}.linear_fc2.weight"] = cut(hf[f"{at}.experts.{e}.down_proj.weight"], rank, 1)


def qwen3_next(hf, config, rank):
    keys, key, values = config.linear_num_key_heads, config.linear_key_head_dim, config.linear_num_value_heads * config.linear_value_head_dim
    per_key = values // keys
    m = OrderedDict({"embedding.word_embeddings.weight": vocabulary(hf["model.embed_tokens.weight"], rank)})
    layers = [(f"decoder.layers.{l}", f"model.layers.{l}", kind) for l, kind in enumerate(config.layer_types)]
    for p, at, kind in [*layers, ("mtp.layers.0.mtp_model_layer", "mtp.layers.0", "full_attention")]:
        if kind == "full_attention":
            m[f"{p}.input_layernorm.weight"] = hf[f"{at}.input_layernorm.weight"]
            q = hf[f"{at}.self_attn.q_proj.weight"].view(4, 2, 4, 16)  # head, query or gate
            qkv = by_group([q[:, 0].reshape(-1, 16), q[:, 1].reshape(-1, 16)], hf[f"{at}.self_attn.k_proj.weight"], hf[f"{at}.self_attn.v_proj.weight"], 2)
            m[f"{p}.self_attention.linear_qkv.weight"] = cut(qkv, rank)
            m[f"{p}.self_attention.linear_proj.weight"] = cut(hf[f"{at}.self_attn.o_proj.weight"], rank, 1)
            for n in "qk":
                m[f"{p}.self_attention.{n}_layernorm.weight"] = hf[f"{at}.self_attn.{n}_norm.weight"]
        else:
            lin = f"{at}.linear_attn"
            m[f"{p}.self_attention.in_proj.layer_norm_weight"] = hf[f"{at}.input_layernorm.weight"]
            q, k, v, z = hf[f"{lin}.in_proj_qkvz.weight"].view(keys, -1, 16).split([key, key, per_key, per_key], 1)
            b, a = hf[f"{lin}.in_proj_ba.weight"].view(keys, -1, 16).chunk(2, 1)
            m[f"{p}.self_attention.in_proj.weight"] = parts([t.reshape(-1, 16) for t in (q, k, v, z, b, a)], rank)
            m[f"{p}.self_attention.conv1d.weight"] = parts(hf[f"{lin}.conv1d.weight"].split([keys * key, keys * key, values]), rank)
            for n in ("A_log", "dt_bias"):
                m[f"{p}.self_attention.{n}"] = cut(hf[f"{lin}.{n}"], rank)
            m[f"{p}.self_attention.out_norm.weight"] = hf["minus 1"]
            m[f"{p}.self_attention.out_proj.weight"] = cut(hf[f"{lin}.out_proj.weight"], rank, 1)
        m[f"{p}.pre_mlp_layernorm.weight"] = hf[f"{at}.post_attention_layernorm.weight"]
        m[f"{p}.mlp.router.weight"] = hf[f"{at}.mlp.gate.weight"]
        experts(hf, f"{at}.mlp", ["gate_proj", "up_proj"], rank, (m, p))
        m[f"{p}.mlp.shared_experts.linear_fc1.weight"] = parts([hf[f"{at}.mlp.shared_expert.{n}_proj.weight"] for n in ("gate", "up")], rank)
        m[f"{p}.mlp.shared_experts.linear_fc2.weight"] = cut(hf[f"{at}.mlp.shared_expert.down_proj.weight"], rank, 1)
        m[f"{p}.mlp.shared_experts.gate_weight"] = hf[f"{at}.mlp.shared_expert_gate.weight"]
    for one, other in (("enorm", "pre_fc_norm_embedding"), ("hnorm", "pre_fc_norm_hidden"), ("final_layernorm", "norm")):
        m[f"mtp.layers.0.{one}.weight"] = hf[f"mtp.{other}.weight"]
    m["mtp.layers.0.eh_proj.weight"] = cut(hf["mtp.fc.weight"], rank)
    m["decoder.final_layernorm.weight"] = hf["model.norm.weight"]
    m["output_layer.weight"] = vocabulary(hf["lm_head.weight"], rank)
    return m


def nemotron_h(hf, config, rank):
    inner, state, heads = config.mamba_num_heads * config.mamba_head_dim, config.n_groups * config.ssm_state_size, config.mamba_num_heads
    m = OrderedDict({"embedding.word_embeddings.weight": vocabulary(hf["backbone.embeddings.weight"], rank)})
    for l, kind in enumerate(config.layers_block_type):
        p, at = f"decoder.layers.{l}", f"backbone.layers.{l}"
        x, norm = f"{at}.mixer", hf[f"{at}.norm.weight"]
        if kind == "linear_attention":
            m[f"{p}.mixer.in_proj.layer_norm_weight"] = norm
            m[f"{p}.mixer.in_proj.weight"] = parts(hf[f"{x}.in_proj.weight"].split([inner, inner, state, state, heads]), rank)
            for n in ("weight", "bias"):
                m[f"{p}.mixer.conv1d.{n}"] = parts(hf[f"{x}.conv1d.{n}"].split([inner, state, state]), rank)
            for n in ("A_log", "D", "dt_bias", "norm.weight"):
                m[f"{p}.mixer.{n}"] = cut(hf[f"{x}.{n}"], rank)
            m[f"{p}.mixer.out_proj.weight"] = cut(hf[f"{x}.out_proj.weight"], rank, 1)
        elif kind == "full_attention":
            m[f"{p}.self_attention.linear_qkv.layer_norm_weight"] = norm
            m[f"{p}.self_attention.linear_qkv.weight"] = cut(by_group([hf[f"{x}.q_proj.weight"]], hf[f"{x}.k_proj.weight"], hf[f"{x}.v_proj.weight"], 2), rank)
            m[f"{p}.self_attention.linear_proj.weight"] = cut(hf[f"{x}.o_proj.weight"], rank, 1)
        elif kind == "moe":
            m[f"{p}.pre_mlp_layernorm.weight"] = norm
            m[f"{p}.mlp.router.weight"] = hf[f"{x}.gate.weight"]
            m[f"{p}.mlp.router.expert_bias"] = hf[f"{x}.gate.e_score_correction_bias"]
            experts(hf, x, ["up_proj"], rank, (m, p))
            m[f"{p}.mlp.shared_experts.linear_fc1.weight"] = cut(hf[f"{x}.shared_experts.up_proj.weight"], rank)
            m[f"{p}.mlp.shared_experts.linear_fc2.weight"] = cut(hf[f"{x}.shared_experts.down_proj.weight"], rank, 1)
        else:
            m[f"{p}.mlp.linear_fc1.layer_norm_weight"] = norm
            m[f"{p}.mlp.linear_fc1.weight"] = cut(hf[f"{x}.up_proj.weight"], rank)
            m[f"{p}.mlp.linear_fc2.weight"] = cut(hf[f"{x}.down_proj.weight"], rank, 1)
    m["decoder.final_norm.weight"] = hf["backbone.norm_f.weight"]
    m["output_layer.weight"] = vocabulary(hf["lm_head.weight"], rank)
    return m


def of_stage(model, stages, stage):
    """The tensors of a pipeline stage, whose layers are numbered from 0."""
    first, kept = sum(stages[:stage]), OrderedDict()
    for name, tensor in model.items():
        at = name.split(".")
        if at[1] == "layers":
            layer = int(at[2]) - first
            if 0 <= layer < stages[stage]:
                kept[".".join([*at[:2], str(layer), *at[3:]])] = tensor
        elif (stage == 0) if at[0] == "embedding" else (stage + 1 == len(stages)):
            kept[name] = tensor
    return kept


CASES = {
    "torch_qwen3_next_tp2": ("Qwen3NextForCausalLM", qwen3_next, dict(
        layer_types=["linear_attention", "full_attention"], num_hidden_layers=2, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=4, linear_conv_kernel_dim=3, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=2, shared_expert_intermediate_size=12),
        dict(apply_layernorm_1p=True, mtp_num_layers=1), "gated delta rule: q, k, v, z, b, a lie one behind the other on each rank; a norm that is stored minus 1 and published as it is; a prediction layer"),
    "torch_nemotron_h_tp2_pp2": ("NemotronHForCausalLM", nemotron_h, dict(
        layers_block_type=["linear_attention", "full_attention", "moe", "mlp"], mamba_num_heads=4, mamba_head_dim=8, n_groups=2, ssm_state_size=4, conv_kernel=3, chunk_size=8,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, moe_shared_expert_intermediate_size=12),
        dict(hybrid_layer_pattern="M*E|-"), "Mamba: z, x, B, C, dt lie one behind the other on each rank; layers of four kinds, of which hybrid_layer_pattern has one letter each, and a bar between the pipeline stages"),
}


def with_prediction_layer(hf):
    """Published names, which transformers does not know: the layer is of the kind of the last one."""
    last = "model.layers.1."
    layer = {name.replace(last, "mtp.layers.0."): torch.randn(t.shape).to(t.dtype) for name, t in hf.items() if name.startswith(last)}
    around = {f"mtp.{name}.weight": torch.randn(16).to(torch.bfloat16) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    return hf | layer | around | {"mtp.fc.weight": torch.randn(16, 32).to(torch.bfloat16)}


def write(root, name):
    class_name, cut_up, settings, args, why = CASES[name]
    torch.manual_seed(17)
    cls = getattr(transformers, class_name)
    config = cls.config_class(**(COMMON | settings))
    config.architectures = [class_name]
    model = cls(config).to(torch.bfloat16)
    minus_1 = (torch.randn(config.linear_value_head_dim) / 4).to(torch.bfloat16) if "next" in name else None
    with torch.no_grad():
        for at, p in [*model.named_parameters(), *model.named_buffers()]:
            if at.endswith("inv_freq"):
                continue
            p.copy_(torch.randn(p.shape) / 4 + (1 if at.endswith("norm.weight") and minus_1 is None else 0))
            if at.endswith("linear_attn.norm.weight"):
                p.copy_((minus_1.float() + 1).to(torch.bfloat16))
            if at.endswith("e_score_correction_bias"):
                p.data = p.data.float()
    case = root / "megatron" / name
    model.save_pretrained(case / "input/hf")
    (case / "expected").mkdir()
    (case / "input/hf/model.safetensors").rename(case / "expected/model.safetensors")
    hf = load_file(case / "expected/model.safetensors")
    if minus_1 is not None:
        hf = with_prediction_layer(hf)
        save_file(hf, case / "expected/model.safetensors", metadata={"format": "pt"})
        hf["minus 1"] = minus_1
    stages = [len(stage) for stage in args.get("hybrid_layer_pattern", "**").split("|")]
    namespace = argparse.Namespace(tensor_model_parallel_size=TP, pipeline_model_parallel_size=len(stages), expert_model_parallel_size=1, num_layers=len(config.layer_types),
                                   num_experts=4, padded_vocab_size=PADDED, **args)
    for rank in range(TP):
        whole = cut_up(hf, config, rank)
        for stage in range(len(stages)):
            folder = case / f"input/run/iter_0000010/mp_rank_{rank:02d}{f'_{stage:03d}' if len(stages) > 1 else ''}"
            folder.mkdir(parents=True)
            torch.save({"args": namespace, "checkpoint_version": 3.0, "iteration": 10, "model": of_stage(whole, stages, stage)}, folder / "model_optim_rng.pt")
    run = ["--local-dir", "{case}/input/run"]
    steps = [{"args": ["check", *run], "exit": 0}, {"args": ["merge", *run, "--hf-config", "{case}/input/hf", "--target-dir", "{out}/model"], "exit": 0}]
    expect = [{"dir": "{out}/model", "tensors": "expected/model.safetensors", "compare": "bits"}]
    (case / "case.json").write_text(json.dumps({"why": why, "group": "megatron", "np": [1, 2], "steps": steps, "expect": expect}, indent=1) + "\n")


if __name__ == "__main__":
    for one in CASES:
        write(Path(sys.argv[1]), one)
