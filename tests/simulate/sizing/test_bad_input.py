"""What cannot be true is refused, with what was wrong, where, and what to do."""

from __future__ import annotations

import math

import pytest

from headway.core.errors import ConfigError, HeadwayError, ModelError
from headway.simulate.sizing import (
    ENGINES,
    Efficiency,
    MemorySettings,
    engine_named,
    hardware_named,
    kv_cost,
    kv_dtype,
    live_kv,
    plan_memory,
    shape_from_config,
    shape_from_gguf,
)
from tests.simulate.sizing import configs as c

NEEDED = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]


@pytest.mark.parametrize("field", NEEDED)
def test_a_config_without_a_needed_field(field):
    config = {key: value for key, value in c.LLAMA_31_8B.items() if key != field}
    with pytest.raises(ModelError, match=field) as refused:
        shape_from_config(config, where="here/config.json")
    assert "here/config.json" in refused.value.message


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 0, 1.5, True, "many", [4096], 10**15, {}], ids=str)
@pytest.mark.parametrize("field", NEEDED)
def test_a_field_that_cannot_be_true(field, value):
    with pytest.raises(ModelError, match=field):
        shape_from_config({**c.LLAMA_31_8B, field: value})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 7}, "num_key_value_heads"),
        ({"hidden_size": 4097}, "hidden_size"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["telepathy"] * 32}, "telepathy"),
        ({"layer_types": "full"}, "layer_types"),
        ({"quantization_config": {"quant_method": "magic"}}, "magic"),
        ({"quantization_config": [4]}, "quantization_config"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "config_groups"),
        ({"torch_dtype": "int3"}, "torch_dtype"),
        ({"num_local_experts": 4, "num_experts_per_tok": 8}, "num_experts_per_tok"),
        ({"layer_types": ["linear_attention"] * 32}, "linear_num_value_heads"),
        ({"sliding_window": math.nan}, "sliding_window"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_other_impossible_configs(change, says):
    with pytest.raises(ModelError, match=says):
        shape_from_config({**c.LLAMA_31_8B, **change})


def test_a_config_of_nothing():
    with pytest.raises(ModelError, match="hidden_size"):
        shape_from_config({})


def test_a_gguf_without_an_architecture():
    with pytest.raises(ModelError, match=r"general\.architecture"):
        shape_from_gguf({}, {})
    with pytest.raises(ModelError, match=r"num_hidden_layers|hidden_size"):
        shape_from_gguf({"general.architecture": "llama"}, {})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("RTX 4091", "RTX-4090"),
        ("H101", "H100"),
        ("A100", "A100-80GB"),
        ("GeForce RTX 509", "RTX-5090"),
        ("L40X", "L40S"),
    ],
)
def test_an_unknown_gpu_names_the_nearest(name, near):
    with pytest.raises(ConfigError, match=near):
        hardware_named(name)


def test_a_name_like_none_lists_them_all():
    with pytest.raises(ConfigError, match=r"known: .*H100.*RTX-4090"):
        hardware_named("abacus")


@pytest.mark.parametrize("name", ["RTX 4090", "rtx4090", "NVIDIA GeForce RTX 4090", "RTX_4090", "4090"])
def test_a_name_may_be_written_as_people_do(name):
    assert hardware_named(name).name == "RTX-4090"


@pytest.mark.parametrize("memory", [math.nan, math.inf, -3.0, 0.0])
def test_memory_that_cannot_be_true(memory):
    with pytest.raises(ConfigError, match="memory-gib"):
        hardware_named("H100", memory_gib=memory)


def test_the_memory_of_a_cpu_is_asked_for():
    with pytest.raises(ConfigError, match="--memory-gib"):
        hardware_named("Xeon-8480+")
    assert hardware_named("Xeon-8480+", memory_gib=64).memory_bytes == 64 << 30


def test_a_model_too_large_says_what_takes_the_room_and_what_would_fit():
    shape = shape_from_config(c.LLAMA_31_70B, name="llama-70b")
    with pytest.raises(ConfigError) as refused:
        plan_memory(shape, hardware_named("H100"), engine_named("vllm"), MemorySettings())
    for part in (
        "llama-70b",
        "H100",
        "weights 131",
        "71.27 GiB may be used",
        "--tensor-parallel-size 2",
        "B200",
        "quantised",
    ):
        assert part in refused.value.message
    fits = plan_memory(shape, hardware_named("H100"), engine_named("vllm"), MemorySettings(tensor_parallel=2))
    assert fits.tokens > 0


def test_a_real_refusal():
    """vllm-project/vllm issue 13882: Qwen2.5-7B-AWQ on 8 GB at 0.7: «the rest … is -1.05GiB»."""
    qwen = {
        **c.QWEN25_15B, "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False, "quantization_config": c.AWQ,
    }  # fmt: skip
    settings = MemorySettings(gpu_memory_utilization=0.7, max_model_len=4096)
    with pytest.raises(ConfigError, match="nothing is left"):
        plan_memory(shape_from_config(qwen), hardware_named("RTX 4060"), engine_named("vllm-0.7"), settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (MemorySettings(gpu_memory_utilization=math.nan), "gpu-memory-utilization"),
        (MemorySettings(gpu_memory_utilization=1.1), "gpu-memory-utilization"),
        (MemorySettings(gpu_memory_utilization=0.0), "gpu-memory-utilization"),
        (MemorySettings(max_model_len=0), "max-model-len"),
        (MemorySettings(max_num_seqs=0), "max-num-seqs"),
        (MemorySettings(max_num_batched_tokens=-1), "max-num-batched-tokens"),
        (MemorySettings(block_tokens=0), "block-size"),
        (MemorySettings(tensor_parallel=0), "tensor-parallel-size"),
        (MemorySettings(tensor_parallel=5), "use 1, 2, 4, 8, 16"),
        (MemorySettings(kv_cache_dtype="fp7"), "fp8"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_true(settings, says):
    with pytest.raises(HeadwayError, match=says):
        plan_memory(shape_from_config(c.LLAMA_31_8B), hardware_named("H100"), ENGINES["vllm"], settings)


def test_an_engine_that_is_not_known():
    with pytest.raises(ConfigError, match=r"vllm.*sglang"):
        engine_named("vlm")


@pytest.mark.parametrize("value", [math.nan, 0.0, -1.0, 1.01])
def test_an_efficiency_is_a_share(value):
    with pytest.raises(ConfigError, match="compute_ratio"):
        Efficiency(compute_ratio=value)


def test_a_longest_request_that_does_not_fit_is_told_what_does():
    shape = shape_from_config(c.LLAMA_31_8B)
    plan = plan_memory(shape, hardware_named("RTX 4090"), engine_named("vllm"), MemorySettings())
    assert plan.sequences(131072) < 1
    assert plan.longest_context == plan.tokens
    assert kv_cost(shape, kv_dtype("auto")).request_bytes(plan.longest_context) <= plan.kv_bytes


def test_a_server_that_tells_nothing():
    with pytest.raises(ConfigError, match="does not say how large"):
        live_kv({"/metrics": "up 1\n", "/v1/models": "<html>", "/props": "[]"}, "http://here")
