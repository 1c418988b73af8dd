"""What is said of a command line that was not understood: in plain words, with what to write instead."""

from __future__ import annotations

import re
from difflib import get_close_matches

from cyclopts import CoercionError, CycloptsError, UnknownOptionError, UnusedCliTokensError

from headway.loadtest.bench.options import PROFILES

# What each command takes beside flags.
TAKES = {
    "serve": "the model",
    "generate": "the prompt, in quotes",
    "fetch": "the model",
    "kv": "the model or the server",
    "doctor": "the server's URL",
    "check": "the server's URL or a configuration file",
    **dict.fromkeys(
        ("bench", *(f"bench {name}" for name in PROFILES if name != "trace"), "bench stable", "bench sweep"),
        "the server's URL",
    ),
}

# Flags that people know from `vllm serve` and that are something else here.
INSTEAD = {
    "--tensor-parallel-size": "One model runs on the cores of one machine; --threads says on how many.",
    "--gpu-memory-utilization": "--kv-cache-gib says how much memory the KV cache takes.",
    "--enable-prefix-caching": "The prefix cache is on; --prefix-cache-scope says who shares it.",
    "--no-enable-prefix-caching": "Use --prefix-cache-scope off.",
    "--enable-chunked-prefill": "Prefill is always chunked; --max-num-batched-tokens bounds a step.",
    "--api-key": "Keys are kept in a file: `headway keys create TENANT --api-keys FILE`, then --api-keys FILE.",
}

# The same for `vllm bench serve` and `headway bench`.
BENCH_INSTEAD = {
    "--base-url": "The server's URL is an argument.",
    "--host": "The server's URL is an argument.",
    "--port": "The server's URL is an argument.",
    "--backend": "Any server that speaks OpenAI's API is tested alike; see --endpoint.",
    "--dataset-name": "Use --prompts words, sample, sharegpt:FILE or jsonl:FILE.",
    "--dataset-path": "Use --prompts sharegpt:FILE or jsonl:FILE.",
    "--goodput": "Use --slo-ttft, --slo-itl and --slo-e2e, in seconds.",
    "--ignore-eos": "Servers that know ignore_eos are always asked to.",
    "--save-result": "Use --json FILE, or --output FOLDER for all files.",
    "--result-dir": "Use --output.",
    "--result-filename": "Use --json.",
    "--metadata": "Use --note NAME=VALUE.",
    **dict.fromkeys(
        ("--concurrency", "--max-concurrency"),
        "An open loop is never held back, or its rate would be another: use `headway bench concurrency`.",
    ),
    **dict.fromkeys(("--rate", "--request-rate"), "A closed loop has no rate: use `headway bench rate`."),
    "--num-warmups": "Use --warmup, in seconds.",
}


BENCH_COMMANDS = (*PROFILES, "sweep", "stable", "compare", "report")
# What a command of `headway bench` has no use for, and what to say instead.
BENCH_COMMAND_INSTEAD = {
    "bench stable": dict.fromkeys(
        ("--duration", "--requests", "--num-prompts"),
        "A search lasts as long as it needs: --window says how many seconds are measured at each load, and "
        "--most-probes how many loads are tried.",
    ),
    "bench compare": dict.fromkeys(
        ("--duration", "--requests", "--num-prompts", "--warmup"), "It reads two saved runs, and measures nothing."
    ),
    "bench report": dict.fromkeys(
        ("--duration", "--requests", "--num-prompts", "--warmup"), "It reads saved runs, and measures nothing."
    ),
}


def complaint(error: CycloptsError) -> str:
    """One line."""
    command = " ".join(error.command_chain or ())
    if isinstance(error, CoercionError) and command.startswith("bench") and (said := _no_number(error)):
        return said
    if isinstance(error, UnusedCliTokensError) and command == "bench" and (said := _no_profile(error)):
        return said
    if isinstance(error, UnusedCliTokensError) and command in TAKES:
        surplus = " ".join(error.unused_tokens or ())
        return f"{command} takes one argument, {TAKES[command]}; this is too much: {surplus}"
    if isinstance(error, UnknownOptionError) and command == "serve":
        flag, _, value = (error.token.keyword or error.token.value).partition("=")
        if flag == "--model":
            return f"Unknown option: --model. The model is an argument: headway serve {value or _after(flag, error)}"
        if flag in INSTEAD:
            return f"Unknown option: {flag}. {INSTEAD[flag]}"
    if isinstance(error, UnknownOptionError) and command.startswith("bench"):
        flag = (error.token.keyword or error.token.value).partition("=")[0]
        instead = {**BENCH_INSTEAD, **BENCH_COMMAND_INSTEAD.get(command, {})}
        if flag in instead:
            return f"Unknown option: {flag}. {instead[flag]}"
    return str(error)


_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|m|min|h|d)")
_UNITS_S = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def _no_number(error: CoercionError) -> str:
    """Of a word where a number is wanted, what kind of number; empty where it is something else that is wanted."""
    if error.token is None or error.token.keyword is None or error.target_type not in {int, float}:
        return ""
    word, help_text = error.token.value, str(error.argument.parameter.help if error.argument is not None else "")
    wanted = "a whole number, such as 100" if error.target_type is int else "a number, such as 0.5"
    if help_text.startswith("Seconds"):
        span = _SPAN.fullmatch(word.strip().lower())
        wanted = f"seconds, such as {float(span[1]) * _UNITS_S[span[2]] if span else 60:g}"
    return f"Invalid value for {error.token.keyword}: it takes {wanted}, not {word[:40]!r}."


def _no_profile(error: CycloptsError) -> str:
    """Of a word that stands where a profile would, and is neither one nor an address; empty where there is none."""
    word = _after("bench", error)
    if word == "MODEL" or any(sign in word for sign in ".:/") or word.startswith(("-", "localhost")):
        return ""
    nearest = get_close_matches(word, BENCH_COMMANDS, 1)
    meant = f" Did you mean {nearest[0]}?" if nearest else ""
    return f"bench has no profile {word[:40]!r}.{meant} There are {', '.join(BENCH_COMMANDS)}."


def _after(flag: str, error: CycloptsError) -> str:
    """The word that follows the flag, which it was meant for."""
    words = error.root_input_tokens or []
    following = words[words.index(flag) + 1 :] if flag in words else []
    return following[0] if following else "MODEL"
