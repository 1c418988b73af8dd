"""Servers' flags by headway's name of a setting: what is advised of a server is said in its own words.

vLLM's are those of its `EngineArgs` (0.6 to 0.32), SGLang's of its server arguments (0.4 to 0.5), TGI's of
`text-generation-launcher` (3), llama.cpp's of `llama-server`. What a server has no flag for is not in its table; what
headway's gateway can do before any server is in `GATEWAY`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_OF_OTHERS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "max_num_seqs": "--max-num-seqs",
        "max_num_batched_tokens": "--max-num-batched-tokens",
        "max_model_len": "--max-model-len",
        "kv_cache_gib": "--gpu-memory-utilization",
        "kv_cache_dtype": "--kv-cache-dtype",
        "tensor_parallel_size": "--tensor-parallel-size",
        "api_server_count": "--api-server-count",
    },
    "sglang": {
        "max_num_seqs": "--max-running-requests",
        "max_num_batched_tokens": "--chunked-prefill-size",
        "max_model_len": "--context-length",
        "kv_cache_gib": "--mem-fraction-static",
        "kv_cache_dtype": "--kv-cache-dtype",
        "tensor_parallel_size": "--tp-size",
        "api_server_count": "--tokenizer-worker-num",
        "max_waiting": "--max-queued-requests",
    },
    "tgi": {
        "max_num_seqs": "--max-batch-size",
        "max_num_batched_tokens": "--max-batch-prefill-tokens",
        "max_model_len": "--max-total-tokens",
        "kv_cache_gib": "--cuda-memory-fraction",
        "kv_cache_dtype": "--kv-cache-dtype",
        "tensor_parallel_size": "--num-shard",
        "api_server_count": "--validation-workers",
    },
    "llamacpp": {
        "max_num_seqs": "--parallel",
        "max_num_batched_tokens": "--batch-size",
        "kv_cache_gib": "--ctx-size",
        "kv_cache_dtype": "--cache-type-k",
        "threads": "--threads",
    },
}
# By kind of server, as `server_names.KINDS` has them; headway's own are not listed: they are the names themselves.
FLAGS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {kind: MappingProxyType(dict(named)) for kind, named in _OF_OTHERS.items()}
)
# Where a value has a name of its own as well.
_VALUES: Mapping[tuple[str, str, str], str] = MappingProxyType(
    {
        ("vllm", "kv_cache_dtype", "u8"): "fp8",
        ("sglang", "kv_cache_dtype", "u8"): "fp8_e5m2",
        ("tgi", "kv_cache_dtype", "u8"): "fp8_e5m2",
        ("llamacpp", "kv_cache_dtype", "u8"): "q8_0 --cache-type-v q8_0",
    }
)
# What headway does before its workers, whatever they are: who is let in, who waits, and how long an answer may be.
GATEWAY = frozenset(
    {
        *("max_waiting", "max_waiting_tokens", "ttft_limit", "clamp_output_tokens", "store"),
        *("long_prompt_tokens", "long_prompt_slots", "long_output_tokens", "long_output_slots"),
    }
)
# Of headway: it has none, and what others call so it does by itself.
_NOT_OURS = frozenset({"api_server_count"})
PUT_BEFORE = " (put `headway serve --worker URL` before it, which has this)"

_FLAG = re.compile(r"--([a-z][a-z-]*[a-z])(?: (\d+(?:\.\d+)?|[a-z]+\d+\b))?")
_CODE = re.compile(r"`[^`]*`")  # a command that is written out is nobody else's


def flag_of(kind: str, name: str) -> str | None:
    """Of a setting by headway's name; None where that server has none. A server of no known kind has headway's."""
    if kind in FLAGS:
        return FLAGS[kind].get(name)
    return None if name in _NOT_OURS else "--" + name.replace("_", "-")


def in_words_of(kind: str, words: str) -> str | None:
    """Advice with headway's flags, with this server's; None where it names one that neither the server nor a gateway
    before it has.
    """
    plain = _CODE.sub("", words)
    missing = {name for found in _FLAG.finditer(plain) if flag_of(kind, name := _name(found)) is None}
    if missing - (GATEWAY if kind in FLAGS else frozenset()):
        return None

    def named(found: re.Match[str]) -> str:
        name, value = _name(found), found[2]
        flag = flag_of(kind, name) or f"--{found[1]}"
        return flag if value is None else f"{flag} {_VALUES.get((kind, name, value), value)}"

    pieces, at = [], 0
    for code in _CODE.finditer(words):
        pieces += [_FLAG.sub(named, words[at : code.start()]), code[0]]
        at = code.end()
    said = "".join([*pieces, _FLAG.sub(named, words[at:])])
    return said + PUT_BEFORE if missing else said


def _name(found: re.Match[str]) -> str:
    return found[1].replace("-", "_")
