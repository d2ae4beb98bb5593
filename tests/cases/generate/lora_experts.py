"""Cases with LoRA adapters of bare parameters (PEFT's target_parameters): stacks of experts, their patterns, and their order.

Expected values: PEFT `merge_and_unload` in fp32. Adapter values are multiples of 1/64, so that results can be compared bit for bit.
"""
from lora import *

GATE_UP, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
# What PEFT writes for an adapter of gate_proj, up_proj and down_proj of transformers 4 once transformers 5 has loaded it (_convert_peft_config_moe).
DOUBLED = dict(rank_pattern={r".*\.gate_up_proj": 4}, alpha_pattern={r".*\.gate_up_proj": 16})


def gpt_oss(dtype, seed=41):
    from transformers import GptOssConfig, GptOssForCausalLM
    model = GptOssForCausalLM(GptOssConfig(hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
                                           vocab_size=50, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64, tie_word_embeddings=False,
                                           bos_token_id=1, eos_token_id=2, pad_token_id=0))
    model.config.dtype = dtype
    return fill(model, seed, dtype=dtype).to(dtype)


def nemotron_h(dtype, seed=42):
    from transformers import NemotronHConfig, NemotronHForCausalLM
    model = NemotronHForCausalLM(NemotronHConfig(
        vocab_size=50, hidden_size=16, layers_block_type=["attention", "moe"], num_attention_heads=4, num_key_value_heads=2, head_dim=4,
        intermediate_size=24, moe_intermediate_size=6, moe_shared_expert_intermediate_size=8, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
        n_group=1, topk_group=1, mamba_num_heads=4, mamba_head_dim=4, n_groups=2, ssm_state_size=4, max_position_embeddings=64, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2, pad_token_id=0))
    model.config.dtype = dtype
    return fill(model, seed, dtype=dtype).to(dtype)


def moe_pairs():
    return adapt(qwen3_moe(torch.float32), 43, r=2, lora_alpha=4, target_modules=["q_proj"], target_parameters=[GATE_UP, DOWN], task_type="CAUSAL_LM", **DOUBLED)


def only_moe_pairs():
    return adapt(qwen3_moe(torch.float32), 44, r=2, lora_alpha=4, target_modules=[], target_parameters=[GATE_UP, DOWN], task_type="CAUSAL_LM")


def folders(g, want):
    if want("moe_alpha_of_one_parameter"):
        merge_case(g, "moe_alpha_of_one_parameter",
                   "fused experts that stay fused (gpt_oss): alpha_pattern names one of two parameters; a pattern that names only their module is about neither",
                   gpt_oss, 41, r=2, lora_alpha=4, target_modules=["q_proj"], target_parameters=[GATE_UP, DOWN], alpha_pattern={"gate_up_proj": 32, "experts": 64})
    if want("moe_doubled_rank"):
        merge_case(g, "moe_doubled_rank", "an adapter of transformers 4 as PEFT saves it with transformers 5: rank and alpha of gate_up_proj doubled by patterns; one tensor per expert",
                   qwen3_moe, 43, r=2, lora_alpha=8, target_modules=["q_proj"], target_parameters=[GATE_UP, DOWN], **DOUBLED)
    if want("moe_without_gate"):
        merge_case(g, "moe_without_gate", "experts without gate (nemotron_h): up_proj is wrapped first, and lies innermost", nemotron_h, 42, r=2, lora_alpha=4,
                   target_modules=["q_proj"], target_parameters=["mixer.experts.up_proj", "mixer.experts.down_proj"], np=[1, 2, 3])


def checkpoints(g, want):
    if want("fsdp2_moe_patterns_fold"):
        f = g.start("fsdp2_moe_patterns_fold")
        verl_checkpoint(moe_pairs, 2, f / "input", qwen3_moe(torch.float32))
        save_adapter(moe_pairs(), f / "tmp")
        shutil.copy(f / "tmp/adapter_config.json", f / "input")
        shutil.rmtree(f / "tmp")
        save_tensors(folded(moe_pairs()), f / "expected/model.safetensors")
        g.finish(f, "FSDP2 x2 rank files with pairs of fused experts and PEFT's adapter_config.json beside: the alpha of gate_up_proj is its pattern's",
                 [step("merge", "--local-dir", "{case}/input", "--target-dir", "{out}/model", "--lora", "fold", says=["alpha 4, 16"])],
                 [{"dir": "{out}/model", "tensors": "expected/model.safetensors"}])
    for name, build, says, config in (
            ("fsdp2_moe_extract", moe_pairs, "the settings are PEFT's own",
             {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "target_parameters": [DOWN, GATE_UP],
              "rank_pattern": {f"model.layers.{i}.{GATE_UP}": 4 for i in (0, 1)}, "alpha_pattern": {f"model.layers.{i}.{GATE_UP}": 16 for i in (0, 1)}}),
            ("fsdp2_moe_extract_unlisted", only_moe_pairs, "nothing lists the parameters, and only experts are adapted",
             {"r": 2, "lora_alpha": 4, "target_modules": [], "target_parameters": ["down_proj", "gate_up_proj"], "rank_pattern": {}, "alpha_pattern": {}})):
        if not want(name):
            continue
        f = g.start(name)
        verl_checkpoint(build, 2, f / "input", qwen3_moe(torch.float32), meta=META | {"r": 2, "lora_alpha": 4})
        if name == "fsdp2_moe_extract":
            (f / "input/lora_train_meta.json").unlink()
            save_adapter(build(), f / "tmp")
            shutil.copy(f / "tmp/adapter_config.json", f / "input")
            edit_json(f / "input/adapter_config.json", target_parameters=[DOWN, GATE_UP])  # PEFT's order of a set is any
            shutil.rmtree(f / "tmp")
        save_hf(qwen3_moe(torch.float32), f / "input/base")
        save_tensors(adapter_tensors(build()), f / "expected/adapter_model.safetensors")
        save_tensors(folded(build()), f / "expected/model.safetensors")
        loads_in_peft(build, config, adapter_tensors(build()))
        g.finish(f, f"FSDP2 x2 rank files with pairs of fused experts, {says}: the adapter is one that PEFT loads, with ranks of single experts; folded it is PEFT's model",
                 [step("merge", "--local-dir", "{case}/input", "--target-dir", "{out}/model"),
                  step("merge-lora", "--base-model", "{case}/input/base", "--lora-adapter", "{out}/model/lora_adapter", "--target-dir", "{out}/folded")],
                 [{"dir": "{out}/model/lora_adapter", "kind": "adapter", "tensors": "expected/adapter_model.safetensors", "json_has": {"adapter_config.json": config}},
                  {"dir": "{out}/folded", "tensors": "expected/model.safetensors"}])


def loads_in_peft(build, config, tensors):
    """PEFT loads the adapter with these settings, and folds it to the same model."""
    with tempfile.TemporaryDirectory() as tmp:
        save_tensors(tensors, Path(tmp) / "adapter_model.safetensors")
        (Path(tmp) / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "task_type": "CAUSAL_LM", **config}))
        loaded = PeftModel.from_pretrained(qwen3_moe(torch.float32), tmp)  # warns of patterns of parameters, which it takes for unknown modules
        again = folded(loaded)
    for name, tensor in folded(build()).items():
        assert torch.equal(tensor, again[name]), name


def build(out, only):
    g = Group(out, "lora")
    want = lambda name: not only or name in only
    folders(g, want)
    checkpoints(g, want)
    g.versions("torch", "transformers", "peft", "safetensors", "tokenizers")


if __name__ == "__main__":
    main(build, __doc__)
