"""Cases with LoRA adapters whose names are not those of the base's files, or whose tensors are not where a plain adapter has them.

Expected values: PEFT `merge_and_unload` in fp32. Adapter values of plain pairs are multiples of 1/64, so that results can be compared bit for bit.
"""
from lora import *

IDS = dict(image_token_id=45, video_token_id=46, vision_start_token_id=47, vision_end_token_id=48)
TEXT = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=50, max_position_embeddings=64,
            bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
LANGUAGE = r".*language_model.*\.(q|v)_proj"


def qwen2_5_vl(dtype):
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
    vision = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=2, spatial_merge_size=1, temporal_patch_size=2, in_channels=3,
                  out_hidden_size=16, fullatt_block_indexes=[0], window_size=4)
    text = dict(TEXT, rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 10000.0})
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **IDS))
    model.config.dtype = dtype
    return fill(model, 51, dtype=dtype).to(dtype)


def llava_next(dtype):
    from transformers import LlavaNextConfig, LlavaNextForConditionalGeneration
    vision = dict(model_type="clip_vision_model", hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=4, patch_size=2,
                  projection_dim=16, vocab_size=50)
    model = LlavaNextForConditionalGeneration(LlavaNextConfig(vision_config=vision, text_config=dict(TEXT, model_type="llama"), image_token_index=45,
                                                              tie_word_embeddings=False))
    model.config.dtype = dtype
    return fill(model, 52, dtype=dtype).to(dtype)


def openai_gpt(dtype):
    from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel
    model = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=4, tie_word_embeddings=False))
    model.config.dtype = dtype
    return fill(model, 53, dtype=dtype).to(dtype)


def renamed_modules(g, want):
    q_v = dict(r=4, lora_alpha=8, target_modules=LANGUAGE, tokenizer=False)
    if want("vision_projector_saved"):
        merge_case(g, "vision_projector_saved", "llava_next, a model type without rules: the trained projector has another prefix than in the files, and no pair has it",
                   llava_next, 52, modules_to_save=["multi_modal_projector"], **q_v)
    if want("vision_embedding_saved"):
        merge_case(g, "vision_embedding_saved", "Qwen2.5-VL: full copies of embedding and head under the module's names, which the family's rules rename",
                   qwen2_5_vl, 54, modules_to_save=["embed_tokens", "lm_head"], **q_v)
    if want("vision_trained_tokens"):
        merge_case(g, "vision_trained_tokens", "Qwen2.5-VL: trained rows of the embedding, whose module the family's rules rename",
                   qwen2_5_vl, 55, trainable_token_indices={"embed_tokens": [7, 3]}, **q_v)
    if want("vision_dora"):
        merge_case(g, "vision_dora", "Qwen2.5-VL: DoRA of modules that the family's rules rename", qwen2_5_vl, 56, how="random", compare={"atol": 1e-6, "rtol": 1e-5},
                   use_dora=True, **q_v)
    if want("vision_lora_bias"):
        merge_case(g, "vision_lora_bias", "Qwen2.5-VL: lora_bias of modules that the family's rules rename", qwen2_5_vl, 57, lora_bias=True, **q_v)


def conv1d(g, want):
    if want("square_conv1d"):
        merge_case(g, "square_conv1d", "openai-gpt, only its square Conv1D: nothing but fan_in_fan_out says that the update is transposed", openai_gpt, 53,
                   scale=lambda m, r: 2.0, transpose=True, r=4, lora_alpha=8, fan_in_fan_out=True, target_modules=["attn.c_proj"], tokenizer=False)


def tied_tokens():
    return adapt(llama(58, tie_word_embeddings=True), 58, r=4, lora_alpha=8, target_modules=["q_proj"], trainable_token_indices=[3, 7], task_type="CAUSAL_LM")


def trained_tokens(g, want):
    if want("fsdp2_trained_tokens_tied"):
        f = g.start("fsdp2_trained_tokens_tied")
        verl_checkpoint(tied_tokens, 2, f / "input", llama(58, tie_word_embeddings=True))
        save_adapter(tied_tokens(), f / "tmp")
        shutil.copy(f / "tmp/adapter_config.json", f / "input")
        shutil.rmtree(f / "tmp")
        save_tensors(weights_of(llama(58, tie_word_embeddings=True)), f / "expected/base.safetensors")
        save_tensors(folded(tied_tokens()), f / "expected/model.safetensors")
        save_tensors(adapter_tensors(tied_tokens()), f / "expected/adapter_model.safetensors")
        where = ("merge", "--local-dir", "{case}/input", "--target-dir")
        g.finish(f, "FSDP2 x2 rank files with trained rows of a tied embedding: its base lies inside token_adapter, and embedding and head have the same rows",
                 [step(*where, "{out}/model", "--lora", "fold"), step(*where, "{out}/plain", "--lora", "drop"), step(*where, "{out}/both")],
                 [{"dir": "{out}/model", "tensors": "expected/model.safetensors", "json_has": {"config.json": {"tie_word_embeddings": True}}},
                  {"dir": "{out}/plain", "tensors": "expected/base.safetensors"}, {"dir": "{out}/both", "tensors": "expected/base.safetensors"},
                  {"dir": "{out}/both/lora_adapter", "kind": "adapter", "tensors": "expected/adapter_model.safetensors",
                   "json_has": {"adapter_config.json": {"trainable_token_indices": [3, 7]}}}])


def build(out, only):
    g = Group(out, "lora")
    want = lambda name: not only or name in only
    renamed_modules(g, want)
    conv1d(g, want)
    trained_tokens(g, want)
    g.versions("torch", "transformers", "peft", "safetensors", "tokenizers")


if __name__ == "__main__":
    main(build, __doc__)
