"""What a server says of itself when it is up: what is really in effect, not what was asked for."""

from __future__ import annotations

import json
import shlex

from headway.core.errors import InvalidRequest
from headway.engine import Engine, EngineConfig

CHOICES = ("policy", "batching", "kv_full", "prefix_cache_scope", "pace")
QUESTION = "What is a headway?"
ANSWER_TOKENS = 64


def banner(engine: Engine, name: str, url: str) -> str:
    """Model, precision, capacity and limits, and a command that gets an answer."""
    limits = engine.scheduler.limits
    step = f"{limits.max_num_seqs} sequences and {limits.max_num_batched_tokens} tokens a step"
    waiting = f"{counted(engine.config.max_waiting)} waiting"
    rows = {
        "Model": f"{name} ({_computed(engine)})",
        "KV cache": _kv_cache(engine),
        "Limits": f"{step}; {engine.max_model_len:,} tokens a request; {waiting}",
        "Promises": _promises(engine.config),
        "Scheduling": _unusual(engine.config),
        "Warning": _cut_short(engine),
        "Listening": url,
        "Try": _command(engine, name, url),
    }
    return "\n".join(f"{label:<11}{text}" for label, text in rows.items() if text)


def counted(number: int, noun: str = "request") -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _computed(engine: Engine) -> str:
    """By what, in what precision."""
    info = engine.info
    if info.precision == "none":
        return f"{info.name}: made-up text at a modelled pace"
    numerics = ", ".join(part for part in (info.instruction_set, info.precision, f"KV {info.kv_cache_dtype}") if part)
    return f"{info.name}: {numerics}; {counted(info.threads, 'thread')}"


def _kv_cache(engine: Engine) -> str:
    tokens = engine.info.num_blocks * engine.info.block_size
    mib = tokens * engine.info.kv_bytes_per_token / 2**20
    return f"{tokens:,} tokens in {f'{mib:.0f} MiB' if mib < 1024 else f'{mib / 1024:.2f} GiB'}"


def _cut_short(engine: Engine) -> str:
    """Where nobody asked for less than the model can do, and the KV cache holds less."""
    trained, config = engine.info.max_model_len, engine.config
    if config.max_model_len is not None or engine.max_model_len >= trained:
        return ""
    return (
        f"the KV cache cuts requests to {engine.max_model_len:,} tokens, and the model can do {trained:,}: "
        f"raise --kv-cache-gib {config.kv_cache_gib:g}"
    )


def _command(engine: Engine, name: str, url: str) -> str:
    """A request that fits; empty when none does."""
    messages = [{"role": "user", "content": QUESTION}]
    body: dict[str, object]
    try:
        prompt, route = engine.chat_template.render(messages), "chat/completions"
        body = {"model": name, "messages": messages}
    except InvalidRequest:  # a model without a template
        prompt, route = QUESTION, "completions"
        body = {"model": name, "prompt": prompt}
    room = engine.max_model_len - len(engine.tokenizer.encode(prompt))
    if room < 1:
        return ""
    body["max_tokens"] = min(ANSWER_TOKENS, room)
    return shlex.join(["curl", f"{url}/v1/{route}", "-H", "Content-Type: application/json", "-d", json.dumps(body)])


def _promises(config: EngineConfig) -> str:
    """What every request is promised that does not say otherwise; empty when nothing."""
    said = {
        "first token within": config.slo_ttft,
        "gaps up to": config.slo_itl,
        "refused when the first token would take more than": config.ttft_limit,
    }
    return "; ".join(f"{words} {seconds:g} s" for words, seconds in said.items() if seconds)


def _unusual(config: EngineConfig) -> str:
    """The choices that change who runs when, where they are not the usual ones; as flags."""
    usual = EngineConfig()
    chosen = {name: getattr(config, name) for name in CHOICES if getattr(config, name) != getattr(usual, name)}
    flags = (
        f"--no-{name}" if value is False else f"--{name.replace('_', '-')} {value}" for name, value in chosen.items()
    )
    return " ".join(flags)
