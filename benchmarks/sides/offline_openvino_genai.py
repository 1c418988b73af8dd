"""Side `openvino-genai` of the offline benchmark: its continuous-batching pipeline, all items handed over at once, with
its prefix cache. Runs in an environment of its own that holds `openvino-genai` and `numpy`.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import openvino as ov
import openvino_genai as genai

from benchmarks import offline_job as work


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--items", type=int, default=work.ITEMS)
    parser.add_argument("--kv-cache-gib", type=float, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--kv-cache-dtype", required=True)
    arguments = parser.parse_args()

    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = 0
    scheduler.cache_size = max(1, round(arguments.kv_cache_gib))  # it takes whole GiB
    scheduler.max_num_seqs = work.MAX_NUM_SEQS
    scheduler.max_num_batched_tokens = work.MAX_NUM_BATCHED_TOKENS
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    properties = {"INFERENCE_PRECISION_HINT": arguments.dtype, "KV_CACHE_PRECISION": arguments.kv_cache_dtype}
    pipeline = genai.ContinuousBatchingPipeline(arguments.gguf, scheduler, "CPU", properties)

    def config(tokens: int) -> genai.GenerationConfig:
        wanted = genai.GenerationConfig()
        wanted.max_new_tokens = tokens
        wanted.ignore_eos = True
        wanted.do_sample = False
        return wanted

    def run(job: work.Job) -> int:
        prompts = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in job.prompts]
        results = pipeline.generate(prompts, [config(tokens) for tokens in job.outputs])
        return sum(len(result.m_generation_ids[0]) for result in results)

    run(work.make_job(work.WARM_UP_ITEMS, work.WARM_UP_SEED))
    job = work.make_job(arguments.items)
    start = time.perf_counter()
    produced = run(job)
    print(work.told(job, time.perf_counter() - start, produced), flush=True)


if __name__ == "__main__":
    main()
