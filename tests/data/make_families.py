#!/usr/bin/env python3
"""Writes families/<name>.json: what transformers itself calls the tensors of a tiny model of each family.

    config    as save_pretrained writes it
    modules   [name, shape] of state_dict(): what training shards hold
    files     [name, shape] of what save_pretrained writes, in the order in which it divides them into files
    buffers   names of the state dict that are no parameters

The tests compare our mapping of `modules` with `files`. Needs torch and transformers: python tests/data/make_families.py

A few names in files (OLDER) transformers 5 keeps where it has loaded them, but does not write for a new model: of those models, `files` is what
it writes after it has loaded a folder with such names.
"""
import json
import os
import re
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import modeling_utils

TEXT = dict(vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
            max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
PLAIN = {k: v for k, v in TEXT.items() if k != "head_dim"}
MOE = dict(moe_intermediate_size=6, num_experts=4, num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[1])
VISION = dict(depth=2, hidden_size=16, intermediate_size=24, num_heads=4, in_channels=3, patch_size=2, spatial_merge_size=2, temporal_patch_size=2)
SHORT_VISION = {k: v for k, v in VISION.items() if k not in ("hidden_size", "intermediate_size")}
ROPE = dict(rope_type="default", mrope_section=[1, 1, 0], rope_theta=10000.0)
LINEAR = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=3, linear_value_head_dim=5, linear_conv_kernel_dim=3)
CLIP = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, image_size=8, patch_size=4, projection_dim=8)
SIGLIP = {k: v for k, v in CLIP.items() if k != "projection_dim"} | dict(model_type="siglip_vision_model")
CLIP_TOWER = (r"^(model\.)?vision_tower\.", r"\g<0>vision_model.")
OLDER = {name: CLIP_TOWER for name in ("llava", "llava_next", "llava_onevision", "vipllava", "gemma3", "paligemma", "aya_vision", "cohere2_vision", "lfm2_vl")}
OMNI_VISION = VISION | dict(out_hidden_size=16, num_position_embeddings=16, deepstack_visual_indexes=[0])
OMNI_AUDIO = dict(d_model=16, encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=24, num_mel_bins=8, max_source_positions=32, output_dim=16)


def mimo():
    """MiMo's class lies beside its weights (modeling_mimo.py): a Qwen2 with prediction layers."""
    qwen2 = transformers.models.qwen2.modeling_qwen2

    class MiMoConfig(transformers.Qwen2Config):
        model_type = "mimo"

    class MiMoMTPLayers(torch.nn.Module):
        def __init__(self, config):
            super().__init__()
            for norm in ("input_layernorm", "post_attention_layernorm", "token_layernorm", "hidden_layernorm"):
                setattr(self, norm, qwen2.Qwen2RMSNorm(config.hidden_size))
            self.input_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
            self.final_layernorm = qwen2.Qwen2RMSNorm(config.hidden_size)
            self.self_attn = qwen2.Qwen2Attention(config, layer_idx=0)
            self.mlp = qwen2.Qwen2MLP(config)

    class MiMoForCausalLM(transformers.Qwen2ForCausalLM):
        config_class = MiMoConfig

        def __init__(self, config):
            super().__init__(config)
            self.model.mtp_layers = torch.nn.ModuleList([MiMoMTPLayers(config) for _ in range(config.num_nextn_predict_layers)])

    return MiMoForCausalLM


MODELS = {
    "llama": ("LlamaForCausalLM", TEXT),
    "llama_bias": ("LlamaForCausalLM", TEXT | dict(attention_bias=True, mlp_bias=True)),
    "llama_tied": ("LlamaForCausalLM", TEXT | dict(tie_word_embeddings=True)),
    "llama_reward": ("LlamaForSequenceClassification", TEXT | dict(num_labels=1)),
    "mistral": ("MistralForCausalLM", TEXT),
    "mixtral": ("MixtralForCausalLM", TEXT | dict(num_local_experts=4, num_experts_per_tok=2)),
    "qwen2": ("Qwen2ForCausalLM", PLAIN),
    "qwen2_critic": ("Qwen2ForTokenClassification", PLAIN | dict(num_labels=1)),
    "qwen2_moe": ("Qwen2MoeForCausalLM", PLAIN | MOE | dict(shared_expert_intermediate_size=12)),
    "qwen3": ("Qwen3ForCausalLM", TEXT | dict(head_dim=6)),
    "qwen3_moe": ("Qwen3MoeForCausalLM", TEXT | MOE),
    "gemma": ("GemmaForCausalLM", TEXT),
    "gemma2": ("Gemma2ForCausalLM", TEXT),
    "gemma3_text": ("Gemma3ForCausalLM", TEXT),
    "gpt2": ("GPT2LMHeadModel", dict(n_embd=16, n_layer=2, n_head=4, vocab_size=50, n_positions=32, bos_token_id=1, eos_token_id=2)),
    "gpt2_base": ("GPT2Model", dict(n_embd=16, n_layer=2, n_head=4, vocab_size=50, n_positions=32, bos_token_id=1, eos_token_id=2)),
    "phi3": ("Phi3ForCausalLM", PLAIN),
    "gpt_neox": ("GPTNeoXForCausalLM", {k: v for k, v in PLAIN.items() if k != "num_key_value_heads"}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {k: v for k, v in PLAIN.items() if k != "num_key_value_heads"} | dict(
        num_key_value_heads=4, num_hidden_layers=3, moe_intermediate_size=8, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, n_shared_experts=1,
        first_k_dense_replace=1, q_lora_rank=6, kv_lora_rank=5, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=3)),
    "deepseek_v3_no_q_lora": ("DeepseekV3ForCausalLM", {k: v for k, v in PLAIN.items() if k != "num_key_value_heads"} | dict(
        num_key_value_heads=4, moe_intermediate_size=8, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, n_shared_experts=2,
        first_k_dense_replace=0, q_lora_rank=None, kv_lora_rank=5, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=3)),
    "deepseek_v2": ("DeepseekV2ForCausalLM", {k: v for k, v in PLAIN.items() if k != "num_key_value_heads"} | dict(
        num_key_value_heads=4, num_hidden_layers=3, moe_intermediate_size=8, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        first_k_dense_replace=1, q_lora_rank=6, kv_lora_rank=5, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=3)),
    "glm4_moe": ("Glm4MoeForCausalLM", TEXT | dict(
        num_hidden_layers=3, moe_intermediate_size=8, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, n_shared_experts=1, first_k_dense_replace=1,
        attention_bias=True, use_qk_norm=True)),
    "glm4": ("Glm4ForCausalLM", TEXT | dict(attention_bias=True)),
    "starcoder2": ("Starcoder2ForCausalLM", PLAIN),
    "starcoder2_no_bias": ("Starcoder2ForCausalLM", PLAIN | dict(use_bias=False, tie_word_embeddings=False)),
    "nemotron": ("NemotronForCausalLM", TEXT),
    "falcon_7b": ("FalconForCausalLM", dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=4)),
    "falcon_new": ("FalconForCausalLM", dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
                                            new_decoder_architecture=True, bias=True)),
    "falcon_rw": ("FalconForCausalLM", dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, multi_query=False,
                                           parallel_attn=False, bias=True, alibi=True)),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", {k: v for k, v in PLAIN.items() if k != "num_key_value_heads"} | dict(
        num_key_value_heads=4, num_hidden_layers=3, moe_intermediate_size=8, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, n_shared_experts=1,
        q_lora_rank=6, kv_lora_rank=5, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=3)),
    "minimax_m2": ("MiniMaxM2ForCausalLM", TEXT | dict(num_local_experts=4, num_experts_per_tok=2)),
    "olmo2": ("Olmo2ForCausalLM", PLAIN),
    "olmoe": ("OlmoeForCausalLM", PLAIN | dict(num_experts=4, num_experts_per_tok=2)),
    "mimo": (mimo, PLAIN | dict(num_nextn_predict_layers=1)),
    "qwen3_next": ("Qwen3NextForCausalLM", TEXT | LINEAR | dict(
        moe_intermediate_size=6, num_experts=4, num_experts_per_tok=2, shared_expert_intermediate_size=12, layer_types=["full_attention", "linear_attention"])),
    "qwen3_5_moe_text": ("Qwen3_5MoeForCausalLM", TEXT | LINEAR | dict(
        moe_intermediate_size=6, num_experts=4, num_experts_per_tok=2, shared_expert_intermediate_size=12, layer_types=["full_attention", "linear_attention"])),
    "nemotron_h": ("NemotronHForCausalLM", TEXT | dict(
        hybrid_override_pattern="M*E-", num_hidden_layers=4, mamba_num_heads=4, mamba_head_dim=6, n_groups=2, ssm_state_size=5, conv_kernel=3, chunk_size=8,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=6, moe_shared_expert_intermediate_size=12)),
    "gpt_oss": ("GptOssForCausalLM", TEXT | dict(num_local_experts=4, num_experts_per_tok=2)),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", dict(
        text_config=PLAIN | dict(rope_parameters=ROPE), vision_config=SHORT_VISION | dict(embed_dim=16, hidden_size=16, mlp_ratio=2), tie_word_embeddings=False)),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", dict(
        text_config=PLAIN | dict(rope_parameters=ROPE), vision_config=VISION | dict(out_hidden_size=16, fullatt_block_indexes=[1]), tie_word_embeddings=True)),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", dict(
        text_config=TEXT | dict(rope_parameters=ROPE), vision_config=VISION | dict(out_hidden_size=16, num_position_embeddings=16, deepstack_visual_indexes=[0]))),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration", dict(
        text_config=TEXT | MOE | dict(rope_parameters=ROPE), vision_config=VISION | dict(out_hidden_size=16, num_position_embeddings=16, deepstack_visual_indexes=[0]))),
    "ernie4_5_moe": ("Ernie4_5_MoeForCausalLM", PLAIN | dict(moe_intermediate_size=6, moe_num_experts=4, moe_k=2, moe_layer_start_index=1, moe_num_shared_experts=1)),
    "exaone_moe": ("ExaoneMoeForCausalLM", PLAIN | dict(
        moe_intermediate_size=6, num_experts=4, num_experts_per_tok=2, num_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1)),
    "mimo_v2_flash": ("MiMoV2FlashForCausalLM", PLAIN | dict(
        head_dim=6, v_head_dim=4, moe_intermediate_size=6, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        layer_types=["full_attention", "sliding_attention"], mlp_layer_types=["dense", "sparse"])),
    "phimoe": ("PhimoeForCausalLM", PLAIN | dict(num_local_experts=4, num_experts_per_tok=2)),
    "jamba": ("JambaForCausalLM", PLAIN | dict(
        num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
        mamba_d_state=4, mamba_d_conv=2, mamba_expand=2, mamba_dt_rank=3)),
    "lfm2_moe": ("Lfm2MoeForCausalLM", PLAIN | dict(
        moe_intermediate_size=6, num_experts=4, num_experts_per_tok=2, num_dense_layers=1, layer_types=["conv", "full_attention"])),
    "granitemoe": ("GraniteMoeForCausalLM", PLAIN | dict(num_local_experts=4, num_experts_per_tok=2)),
    "granitemoeshared": ("GraniteMoeSharedForCausalLM", PLAIN | dict(num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=12)),
    "granitemoehybrid": ("GraniteMoeHybridForCausalLM", PLAIN | dict(
        num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=12, layer_types=["mamba", "attention"], mamba_n_heads=4, mamba_d_head=8,
        mamba_n_groups=1, mamba_d_state=4, mamba_d_conv=2)),
    "qwen3_omni_moe_thinker": ("Qwen3OmniMoeThinkerForConditionalGeneration", dict(
        text_config=TEXT | MOE | dict(rope_parameters=ROPE), vision_config=OMNI_VISION, audio_config=OMNI_AUDIO)),
    "qwen3_omni_moe": ("Qwen3OmniMoeForConditionalGeneration", dict(
        enable_audio_output=True, thinker_config=dict(text_config=TEXT | MOE | dict(rope_parameters=ROPE), vision_config=OMNI_VISION, audio_config=OMNI_AUDIO),
        talker_config=dict(
            text_config=TEXT | MOE | dict(rope_parameters=ROPE, shared_expert_intermediate_size=12), code_predictor_config=TEXT | dict(num_code_groups=4),
            thinker_hidden_size=16, num_code_groups=4, accept_hidden_layer=1, spatial_merge_size=2),
        code2wav_config=dict(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4, intermediate_size=24, codebook_size=8, num_quantizers=4,
            decoder_dim=16, upsample_rates=[2, 2], upsampling_ratios=[2]))),
    "qwen2_5_omni_thinker": ("Qwen2_5OmniThinkerForConditionalGeneration", dict(
        text_config=PLAIN | dict(rope_parameters=ROPE), vision_config=VISION | dict(out_hidden_size=16, fullatt_block_indexes=[1]), audio_config=OMNI_AUDIO)),
    "llava_next": ("LlavaNextForConditionalGeneration", dict(text_config=TEXT | dict(model_type="llama"), vision_config=CLIP | dict(model_type="clip_vision_model"))),
    "llava_onevision": ("LlavaOnevisionForConditionalGeneration", dict(text_config=PLAIN | dict(model_type="qwen2"), vision_config=SIGLIP | dict(vision_use_head=False))),
    "vipllava": ("VipLlavaForConditionalGeneration", dict(
        text_config=TEXT | dict(model_type="llama"), vision_config=CLIP | dict(model_type="clip_vision_model"), vision_feature_layer=[0, 1])),
    "paligemma": ("PaliGemmaForConditionalGeneration", dict(
        text_config=TEXT | dict(model_type="gemma"), vision_config=SIGLIP | dict(vision_use_head=True), projection_dim=16)),
    "aya_vision": ("AyaVisionForConditionalGeneration", dict(text_config=PLAIN | dict(model_type="cohere2"), vision_config=SIGLIP)),
    "cohere2_vision": ("Cohere2VisionForConditionalGeneration", dict(
        text_config=PLAIN | dict(model_type="cohere2"), vision_config=SIGLIP, alignment_intermediate_size=8)),
    "lfm2_vl": ("Lfm2VlForConditionalGeneration", dict(
        text_config=PLAIN | dict(model_type="lfm2", layer_types=["conv", "full_attention"]),
        vision_config={k: v for k, v in SIGLIP.items() if k != "image_size"} | dict(model_type="siglip2_vision_model", num_patches=16))),
    "internvl": ("InternVLForConditionalGeneration", dict(
        text_config=PLAIN | dict(model_type="qwen2"), vision_config={k: v for k, v in CLIP.items() if k != "projection_dim"} | dict(image_size=[8, 8], patch_size=[4, 4]))),
    "mistral3": ("Mistral3ForConditionalGeneration", dict(
        text_config=TEXT | dict(model_type="mistral"), vision_config={k: v for k, v in CLIP.items() if k != "projection_dim"} | dict(model_type="pixtral", head_dim=4))),
    "aria": ("AriaForConditionalGeneration", dict(
        text_config=PLAIN | dict(model_type="aria_text", moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1),
        vision_config={k: v for k, v in SIGLIP.items()} | dict(model_type="idefics3_vision"), projector_patch_to_query_dict={4: 4})),
    "llava": ("LlavaForConditionalGeneration", dict(text_config=TEXT | dict(model_type="llama"), vision_config=CLIP | dict(model_type="clip_vision_model"))),
    "gemma3": ("Gemma3ForConditionalGeneration", dict(
        text_config=TEXT, vision_config={k: v for k, v in CLIP.items() if k != "projection_dim"} | dict(image_size=16), mm_tokens_per_image=4)),
}


def rows(tensors):
    return [[name, list(tensor.shape)] for name, tensor in tensors.items()]


def with_older_names(model, pattern, replacement):
    """The model as transformers loads it from files with older names, which must be all that it asks for."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        path = Path(folder) / "model.safetensors"
        tensors = {re.sub(pattern, replacement, name): tensor for name, tensor in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
        loaded, found = type(model).from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not found[kind], (kind, found[kind])
    return loaded


def golden(name, settings, older):
    cls = getattr(transformers, name) if isinstance(name, str) else name()
    torch.manual_seed(0)
    model = cls(cls.config_class(**settings))
    if older:
        model = with_older_names(model, *older)
    order = []
    split = modeling_utils.split_torch_state_dict_into_shards

    def watched(state_dict, **more):
        order.append(rows(state_dict))
        return split(state_dict, **more)

    modeling_utils.split_torch_state_dict_into_shards = watched
    try:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            config = json.loads((Path(folder) / "config.json").read_text())
    finally:
        modeling_utils.split_torch_state_dict_into_shards = split
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return dict(config=config, modules=rows(model.state_dict()), files=order[0], buffers=[n for n in model.state_dict() if n not in parameters])


def main():
    out = Path(__file__).parent / "families"
    only = sys.argv[1:]
    out.mkdir(exist_ok=True)
    for name, (class_name, settings) in MODELS.items():
        if only and name not in only:
            continue
        data = golden(class_name, settings, OLDER.get(name))
        lines = [f'{json.dumps(k)}: ' + ("[\n" + ",\n".join("  " + json.dumps(r) for r in v) + "\n]" if v else "[]") for k, v in data.items() if k != "config"]
        text = '{\n"transformers": ' + json.dumps(transformers.__version__) + ',\n"config": ' + json.dumps(data["config"], indent=1) + ",\n" + ",\n".join(lines) + "\n}\n"
        (out / f"{name}.json").write_text(text)
        print(name, len(data["modules"]), len(data["files"]))


main()
