"""Side `openvino-genai`: OpenVINO GenAI's own continuous-batching pipeline, with our precision and KV type.

Runs in an environment of its own that holds `openvino-genai` and `numpy`.
"""

from __future__ import annotations

import argparse

import numpy as np
import openvino as ov
import openvino_genai as genai

from benchmarks import job


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--kv-cache-dtype", required=True)
    arguments = parser.parse_args()

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = job.KV_CACHE_GIB
    scheduler.max_num_seqs = job.MAX_NUM_SEQS
    scheduler.max_num_batched_tokens = job.MAX_NUM_BATCHED_TOKENS
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_PRECISION_HINT": arguments.dtype, "KV_CACHE_PRECISION": arguments.kv_cache_dtype}
    pipeline = genai.ContinuousBatchingPipeline(arguments.gguf, scheduler, "CPU", properties)

    def config(tokens: int) -> genai.GenerationConfig:
        wanted = genai.GenerationConfig()
        wanted.max_new_tokens = tokens
        wanted.ignore_eos = True
        wanted.do_sample = False
        return wanted

    def run(work: job.Job) -> int:
        prompts = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in work.prompts]
        results = pipeline.generate(prompts, [config(tokens) for tokens in work.outputs])
        return sum(len(result.m_generation_ids[0]) for result in results)

    job.measure(run)


if __name__ == "__main__":
    main()
