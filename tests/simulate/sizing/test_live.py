"""What servers say of themselves, in the form they say it."""

from __future__ import annotations

import json

from headway.simulate.sizing import live_kv

VLLM = """# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",gpu_memory_utilization="0.9",num_gpu_blocks="2588"} 1.0
"""
MODELS = json.dumps({"data": [{"id": "meta-llama/Llama-3.1-8B", "max_model_len": 32768}]})


def test_vllm():
    kv = live_kv({"/metrics": VLLM, "/v1/models": MODELS}, "")
    assert (kv.engine, kv.tokens, kv.blocks, kv.block_tokens, kv.utilization) == ("vllm", 41_408, 2588, 16, 0.9)
    assert (kv.model, kv.max_model_len) == ("meta-llama/Llama-3.1-8B", 32768)
    assert kv.sequences(32768) == 2588 / 2048


def test_vllm_before_it_has_sized_its_cache():
    text = VLLM.replace('"2588"', '"None"')
    kv = live_kv({"/metrics": text, "/get_server_info": json.dumps({"max_total_num_tokens": 10})}, "")
    assert kv.engine == "sglang"


def test_sglang():
    info = json.dumps({"max_total_num_tokens": 430913, "mem_fraction_static": 0.88, "context_length": 4096})
    kv = live_kv({"/get_server_info": info}, "")
    assert (kv.engine, kv.tokens, kv.max_model_len, kv.utilization) == ("sglang", 430_913, 4096, 0.88)


def test_llama_cpp():
    props = json.dumps({"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4})
    kv = live_kv({"/props": props, "/metrics": "llamacpp:requests_processing 0\n"}, "")
    assert (kv.engine, kv.tokens, kv.sequences(4096)) == ("llama.cpp", 16_384, 4.0)


def test_headway():
    kv = live_kv({"/metrics": "headway_kv_blocks 1000.0\n", "/v1/models": MODELS}, "")
    assert (kv.engine, kv.blocks, kv.tokens) == ("headway", 1000, 32_000)
