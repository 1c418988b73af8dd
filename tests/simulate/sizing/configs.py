"""The dimensions of public models, as their `config.json` say them: only the fields that sizing reads."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def _llama(  # noqa: PLR0917
    hidden: int, layers: int, heads: int, kv_heads: int, wide: int, vocab: int, context: int, **more: Any
) -> Config:
    return {
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": wide,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        **more,
    }


FP8: Config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
AWQ: Config = {"quant_method": "awq", "bits": 4, "group_size": 128}
INT8: Config = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int", "group_size": None}}},
}

LLAMA_2_7B = _llama(4096, 32, 32, 32, 11008, 32000, 4096, torch_dtype="float16")
LLAMA_2_13B = _llama(5120, 40, 40, 40, 13824, 32000, 4096, torch_dtype="float16")
LLAMA_3_8B = _llama(4096, 32, 32, 8, 14336, 128256, 8192)
LLAMA_31_8B = _llama(4096, 32, 32, 8, 14336, 128256, 131072)
LLAMA_31_70B = _llama(8192, 80, 64, 8, 28672, 128256, 131072)
LLAMA_31_70B_INT8 = {**LLAMA_31_70B, "quantization_config": INT8}
TINYLLAMA = _llama(2048, 22, 32, 4, 5632, 32000, 2048)
SMOLLM2_135M = _llama(576, 30, 9, 3, 1536, 49152, 8192, tie_word_embeddings=True)
QWEN15_7B = _llama(4096, 32, 32, 32, 11008, 151936, 32768, model_type="qwen2", use_sliding_window=False)
QWEN25_05B = _llama(896, 24, 14, 2, 4864, 151936, 32768, model_type="qwen2", tie_word_embeddings=True)
QWEN25_15B = _llama(1536, 28, 12, 2, 8960, 151936, 32768, model_type="qwen2", tie_word_embeddings=True)
QWEN25_CODER_32B = _llama(5120, 64, 40, 8, 27648, 152064, 32768, model_type="qwen2")
QWEN3_8B = _llama(4096, 36, 32, 8, 12288, 151936, 40960, model_type="qwen3", head_dim=128)
QWEN3_14B = _llama(5120, 40, 40, 8, 17408, 151936, 40960, model_type="qwen3", head_dim=128)
QWEN3_32B = _llama(5120, 64, 64, 8, 25600, 151936, 40960, model_type="qwen3", head_dim=128)
QWEN3_30B_A3B = _llama(
    2048, 48, 32, 4, 6144, 151936, 262144, model_type="qwen3_moe", head_dim=128,
    num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[],
)  # fmt: skip
QWEN3_235B_FP8 = _llama(
    4096, 94, 64, 4, 12288, 151936, 262144, model_type="qwen3_moe", head_dim=128, num_experts=128,
    num_experts_per_tok=8, moe_intermediate_size=1536, quantization_config=FP8,
)  # fmt: skip
MISTRAL_7B = _llama(
    4096, 32, 32, 8, 14336, 32064, 32768, model_type="mistral", torch_dtype="float16", sliding_window=None
)
GRANITE_33_2B = _llama(2048, 40, 32, 8, 8192, 49159, 131072, model_type="granite", tie_word_embeddings=True)
GRANITE_30_3B_A800M = _llama(
    1536, 32, 24, 8, 512, 49155, 4096, model_type="granitemoe", tie_word_embeddings=True,
    num_local_experts=40, num_experts_per_tok=8,
)  # fmt: skip
PHI_2 = _llama(2560, 32, 32, 32, 10240, 51200, 2048, model_type="phi", torch_dtype="float16")
FALCON_7B: Config = {
    "model_type": "falcon", "torch_dtype": "bfloat16", "hidden_size": 4544, "num_hidden_layers": 32,
    "num_attention_heads": 71, "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024,
}  # fmt: skip
GPT_OSS_120B = _llama(
    2880, 36, 64, 8, 2880, 201088, 131072, model_type="gpt_oss", head_dim=64, sliding_window=128,
    num_local_experts=128, num_experts_per_tok=4, layer_types=["sliding_attention", "full_attention"] * 18,
    quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
)  # fmt: skip
GEMMA_3_27B: Config = {
    "model_type": "gemma3",
    "text_config": _llama(
        5376, 62, 32, 16, 21504, 262208, 131072, model_type="gemma3_text", head_dim=128, sliding_window=1024,
        sliding_window_pattern=6, tie_word_embeddings=True,
    ),
    "vision_config": {"hidden_size": 1152},
}  # fmt: skip
DEEPSEEK_V3: Config = {
    "model_type": "deepseek_v3", "torch_dtype": "bfloat16", "hidden_size": 7168, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "vocab_size": 129280, "max_position_embeddings": 163840, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "tie_word_embeddings": False, "quantization_config": FP8,
}  # fmt: skip
DEEPSEEK_V32 = {
    **DEEPSEEK_V3,
    "model_type": "deepseek_v32",
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
}
QWEN36_27B: Config = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text", "dtype": "bfloat16", "hidden_size": 5120, "num_hidden_layers": 64,
        "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 17408,
        "vocab_size": 248320, "max_position_embeddings": 262144, "full_attention_interval": 4,
        "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_num_value_heads": 48,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "tie_word_embeddings": False,
    },
    "vision_config": {"depth": 27},
}  # fmt: skip
JAMBA = _llama(
    4096, 32, 32, 8, 14336, 65536, 262144, model_type="jamba", attn_layer_period=8, attn_layer_offset=4,
    expert_layer_period=2, expert_layer_offset=1, num_experts=16, num_experts_per_tok=2,
    mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=256,
)  # fmt: skip
MIXTRAL_8X7B = _llama(
    4096, 32, 32, 8, 14336, 32000, 32768, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2,
    sliding_window=None,
)  # fmt: skip
