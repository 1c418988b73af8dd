"""Side `headway` and `headway-sampled`: the Python API, in this process with its executor in a child."""

from __future__ import annotations

import argparse

from benchmarks import job
from headway import Engine
from headway.core.request import SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--kv-cache-dtype", required=True)
    parser.add_argument("--sampled", action="store_true")
    arguments = parser.parse_args()
    if arguments.sampled:
        params = SamplingParams(temperature=0.8, top_p=0.95, ignore_eos=True)
    else:
        params = SamplingParams(temperature=0.0, ignore_eos=True)

    with Engine(
        arguments.model,
        kv_cache_dtype=arguments.kv_cache_dtype,
        kv_cache_gib=job.KV_CACHE_GIB,
        max_num_seqs=job.MAX_NUM_SEQS,
        max_num_batched_tokens=job.MAX_NUM_BATCHED_TOKENS,
    ) as engine:

        def run(work: job.Job) -> int:
            outputs = engine.generate(work.prompts, max_tokens=work.outputs, params=params)
            return sum(len(output.tokens) for output in outputs)

        job.measure(run)


if __name__ == "__main__":
    main()
