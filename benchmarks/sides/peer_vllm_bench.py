"""`vllm bench serve` without its console script, which wants metadata that the CPU build lacks. All flags are its own.

Run with the Python of vLLM's environment.
"""

from __future__ import annotations

import argparse

from vllm.benchmarks.serve import add_cli_args, main

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args())
