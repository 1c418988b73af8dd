"""How engines divide a device's memory before they size their KV cache: the rule, and the few constants in it.

A constant is a count with a reason, not a fit per model. Where they come from:

- `logit_bytes`: what is alive for one (sequence, vocabulary entry) at the peak of sampling. In vLLM's first engine:
  the logits in 16 and 32 bits, their sorted copy, 64-bit indices, a sum, three softmaxes, log-probabilities and a mask,
  39 bytes, which is what it prints for Llama-3.1-8B (1.19 GiB for 256 sequences). In its second engine the logits,
  the sorted copy, the indices and a mask: 2 + 4 + 4 + 8 + 1 = 19. In llama.cpp the logits: 4.
- `graph_bytes`: what a captured CUDA graph keeps, from the lines «Graph capturing finished … took 0.62 GiB» (granite
  MoE on an L40S) and «… 0.67 GiB» (Mistral-7B on an H100), both for 67 sizes: 10 MiB each.
- `context_bytes`: «non-torch memory» of single GPUs, 0.01 to 0.12 GiB in most logs; 0.35 GiB in vLLM 0.6, which counted
  the driver's own context as well.
- `collective_bytes`: what communication takes on each doubling of the ranks: 0.2 to 1.7 GiB in the logs for 2 and 4
  ranks, so this is the least certain of them.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import Enum

from headway.core.errors import ConfigError

MIB, GIB = 1 << 20, 1 << 30
LARGE_GPU_BYTES = 70 * GIB
# vLLM's first engine began to cut prompts into chunks above this context.
CHUNKED_FROM_TOKENS = 32768


class Share(Enum):
    """What the utilisation setting is a share of."""

    ALL = "of the device's memory, everything included"
    WITHOUT_ACTIVATIONS = "of the memory free before loading, weights and KV cache included"
    REST = "of the memory free after loading"


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine's rule."""

    name: str
    title: str
    share: Share
    utilization: float
    block_tokens: int
    logit_bytes: int
    context_bytes: int
    collective_bytes: int = 0
    graph_bytes: int = 0  # per captured size, where they are part of the budget
    convolution_bytes: int | None = None
    rotary_table: bool = False
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    grows_on_large_gpus: bool = False
    whole_prompts: bool = False  # a step holds whole prompts; in chunks, the profiling run samples nothing

    def batch_limits(self, memory_bytes: int, device: str, context_tokens: int) -> tuple[int, int]:
        """Tokens and sequences of a step when nobody says: vLLM takes more on large GPUs other than the A100."""
        if self.whole_prompts and context_tokens <= CHUNKED_FROM_TOKENS:
            return max(context_tokens, self.max_num_batched_tokens), self.max_num_seqs
        if self.grows_on_large_gpus and memory_bytes >= LARGE_GPU_BYTES and "a100" not in device.lower():
            return 8192, 1024
        return self.max_num_batched_tokens, self.max_num_seqs


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            "vllm", "vLLM, as of 0.21 (CUDA graphs count)", Share.ALL, 0.9, 16, 19, 72 * MIB, 512 * MIB, 10 * MIB,
            rotary_table=True, grows_on_large_gpus=True,
        ),
        Engine(
            "vllm-0.8", "vLLM 0.8 to 0.20 (CUDA graphs come on top)", Share.ALL, 0.9, 16, 19, 72 * MIB, 512 * MIB,
            rotary_table=True, grows_on_large_gpus=True,
        ),
        Engine(
            "vllm-0.7", "vLLM 0.7, and later with the first engine", Share.ALL, 0.9, 16, 39, 72 * MIB, 128 * MIB,
            rotary_table=True, whole_prompts=True,
        ),
        Engine(
            "vllm-0.6", "vLLM up to 0.6", Share.ALL, 0.9, 16, 39, 358 * MIB, 128 * MIB,
            rotary_table=True, whole_prompts=True,
        ),
        Engine(
            "sglang", "SGLang (--mem-fraction-static)", Share.WITHOUT_ACTIVATIONS, 0.88, 1, 19, 512 * MIB, 512 * MIB
        ),
        Engine("trtllm", "TensorRT-LLM (kv_cache_free_gpu_mem_fraction)", Share.REST, 0.9, 32, 8, 512 * MIB, 512 * MIB),
        Engine(
            "llama.cpp", "llama.cpp, all layers on the device", Share.ALL, 1.0, 1, 4, 512 * MIB,
            convolution_bytes=4, max_num_batched_tokens=512, max_num_seqs=512,
        ),
        Engine("headway", "headway serve (OpenVINO on CPUs)", Share.ALL, 0.9, 32, 8, 512 * MIB),
    )
}  # fmt: skip
DEFAULT_ENGINE = "vllm"


def engine_named(name: str) -> Engine:
    """Raises ConfigError for a name that is not known."""
    if (found := ENGINES.get(name.strip().lower())) is not None:
        return found
    near = difflib.get_close_matches(name.lower(), ENGINES, 2, 0.4)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise ConfigError(f"--engine {name!r} is not known: use one of {', '.join(ENGINES)}.{hint}", param="engine")


def captured_sizes(max_num_seqs: int) -> int:
    """How many batch sizes vLLM captures CUDA graphs for: 1, 2, 4, every 8th up to 256, then every 16th, up to 512."""
    largest = min(2 * max_num_seqs, 512)
    return len([1, 2, 4, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)])
