"""`headway generate`: one prompt, its completion on stdout as it appears."""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import App, Parameter

from headway.cli.config import ENGINE_KEYS, keys, with_flags
from headway.core.errors import ConfigError
from headway.core.request import SamplingParams
from headway.engine.config import EngineConfig
from headway.models import DEFAULT_MODEL
from headway.setting import Setting

DEFAULT_MAX_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateConfig:
    """What to generate, beside the engine's own settings."""

    max_tokens: Annotated[
        int | None,
        Setting("Most tokens to generate.", "Output", 1, default=f"{DEFAULT_MAX_TOKENS}, or what the context leaves"),
    ] = None
    temperature: Annotated[float, Setting("Randomness; 0 always takes the likeliest token.", "Output", 0, 2)] = 0.0
    top_p: Annotated[float, Setting("Draw from the likeliest tokens that reach this probability.", "Output", 0, 1)] = (
        1.0
    )
    seed: Annotated[int, Setting("Same seed, same prompt: same output.", "Output", 0, 2**63 - 1)] = 0
    model: Annotated[str, Setting("As for `headway serve`.", "Model")] = DEFAULT_MODEL


OWN_KEYS = tuple(keys(GenerateConfig))
# Of the engine's settings, those that mean something to a single prompt.
MEANT = {"max_model_len", "dtype", "kv_cache_dtype", "kv_cache_gib", "executor", "device", "threads"}
FLAGS = (*OWN_KEYS, *(key for key in ENGINE_KEYS if key.field in MEANT))

Prompt = Annotated[str, Parameter(allow_leading_hyphen=True, help="The prompt; `-` reads it from standard input.")]
Chat = Annotated[
    bool, Parameter(negative="--raw", help="Put the prompt into the model's chat template, or take it raw.")
]


def generate(prompt: Prompt, /, *, chat: Chat = True, **settings: Any) -> None:
    """Complete one prompt on the terminal."""
    own = {key.field: settings.pop(key.field) for key in OWN_KEYS if key.field in settings}
    if re.match("--?[a-z]", prompt):  # a leading hyphen is allowed for `-`, and would make a misspelt flag a prompt
        raise ConfigError(f"Unknown option: {prompt}. A prompt that begins so can be piped: `headway generate -`.")
    text = _standard_input() if prompt == "-" else prompt
    asyncio.run(_generate(text, chat, GenerateConfig(**own), EngineConfig(**settings)))


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"Standard input is not UTF-8 text: {error}.", param="prompt") from error


async def _generate(text: str, chat: bool, wanted: GenerateConfig, config: EngineConfig) -> None:
    from headway.cli.progress import shown_progress
    from headway.engine import Engine

    with shown_progress("starting") as report:
        engine = Engine(wanted.model, config, report=report)
        await engine.start()
    try:
        if chat:
            text = engine.chat_template.render([{"role": "user", "content": text}])
        ids = engine.tokenizer.encode(text, add_special_tokens=not chat)  # a template writes its own special tokens
        room = max(1, engine.max_model_len - len(ids))
        max_tokens = wanted.max_tokens or min(DEFAULT_MAX_TOKENS, room)
        params = SamplingParams(temperature=wanted.temperature, top_p=wanted.top_p, seed=wanted.seed)
        async for delta in engine.stream(ids, max_tokens=max_tokens, params=params):
            print(delta.text, end="", flush=True)
        print()
    finally:
        await engine.close()


app = App(name="generate")
app.default(with_flags(generate, FLAGS))
