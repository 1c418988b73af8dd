"""What is said of a command line that was not understood: in plain words, with what to write instead."""

from __future__ import annotations

from cyclopts import CycloptsError, UnknownOptionError, UnusedCliTokensError

# What each command takes beside flags.
TAKES = {"serve": "the model", "generate": "the prompt, in quotes", "fetch": "the model"}

# Flags that people know from `vllm serve` and that are something else here.
INSTEAD = {
    "--tensor-parallel-size": "One model runs on the cores of one machine; --threads says on how many.",
    "--gpu-memory-utilization": "--kv-cache-gib says how much memory the KV cache takes.",
    "--enable-prefix-caching": "The prefix cache is on; --prefix-cache-scope says who shares it.",
    "--no-enable-prefix-caching": "Use --prefix-cache-scope off.",
    "--enable-chunked-prefill": "Prefill is always chunked; --max-num-batched-tokens bounds a step.",
    "--api-key": "There is no authentication yet: put the server behind a proxy that has it.",
}


def complaint(error: CycloptsError) -> str:
    """One line."""
    command = next(iter(error.command_chain or ()), "")
    if isinstance(error, UnusedCliTokensError) and command in TAKES:
        surplus = " ".join(error.unused_tokens or ())
        return f"{command} takes one argument, {TAKES[command]}; this is too much: {surplus}"
    if isinstance(error, UnknownOptionError) and command == "serve":
        flag, _, value = (error.token.keyword or error.token.value).partition("=")
        if flag == "--model":
            return f"Unknown option: --model. The model is an argument: headway serve {value or _after(flag, error)}"
        if flag in INSTEAD:
            return f"Unknown option: {flag}. {INSTEAD[flag]}"
    return str(error)


def _after(flag: str, error: CycloptsError) -> str:
    """The word that follows the flag, which it was meant for."""
    words = error.root_input_tokens or []
    following = words[words.index(flag) + 1 :] if flag in words else []
    return following[0] if following else "MODEL"
