"""A typed request -> the core's words: sampling, prompts, how many of each and how long.

Types alone cannot say everything: the rules between fields, those that need the model's vocabulary and those on kinds
within a list are told here, with `InvalidRequest`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headway.core.errors import InvalidRequest
from headway.core.request import SamplingParams
from headway.wire import limits
from headway.wire.requests import ChatRequest, CompletionRequest, Generation

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions


# What OpenAI's API takes, and vLLM's beside it, where neither the request nor the model says anything.
SAMPLING_DEFAULTS: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


def sampling_params(asked: Generation, *, vocab_size: int, defaults: Mapping[str, float] = {}) -> SamplingParams:
    """The sampling a request asks for, all but the seed, which each of its outputs has its own of. `defaults` are the
    model's, for the fields that the request leaves out.
    """
    defaults = {**SAMPLING_DEFAULTS, **defaults}
    return SamplingParams(
        temperature=_or(asked.temperature, defaults["temperature"]),
        top_p=_or(asked.top_p, defaults["top_p"]),
        top_k=max(0, int(_or(asked.top_k, defaults["top_k"]))),
        min_p=_or(asked.min_p, defaults["min_p"]),
        frequency_penalty=_or(asked.frequency_penalty, 0.0),
        presence_penalty=_or(asked.presence_penalty, 0.0),
        repetition_penalty=_or(asked.repetition_penalty, defaults["repetition_penalty"]),
        logit_bias=_logit_bias(asked.logit_bias or {}, vocab_size),
        logprobs=_logprobs(asked),
        min_tokens=asked.min_tokens or 0,
        ignore_eos=bool(asked.ignore_eos),
        stop_token_ids=tuple(known_tokens(asked.stop_token_ids or (), vocab_size, "stop_token_ids")),
        stop=(asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ()),
    )


def known_tokens(tokens: Sequence[int], vocab_size: int, param: str) -> Sequence[int]:
    """Return `tokens` when all are ids of the vocabulary; otherwise raise, naming the first that is not."""
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        at = next(i for i, token in enumerate(tokens) if not 0 <= token < vocab_size)
        raise InvalidRequest(
            f"`{param}[{at}]` is {tokens[at]}, but this model's token ids are 0 to {vocab_size - 1}.",
            param=f"{param}[{at}]",
            code="invalid_value",
        )
    return tokens


def prompts(asked: CompletionRequest, vocab_size: int) -> list[str] | list[Sequence[int]]:
    """The prompts of a completion, all texts or all token ids. Raises `InvalidRequest` on a mixture or an empty one."""
    prompt = asked.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise _wrong("prompt", "`prompt` is an empty list. Send at least one prompt.")
    kind = type(prompt[0])
    for i, one in enumerate(prompt):
        if type(one) is not kind:
            raise _wrong(
                f"prompt[{i}]",
                f"`prompt[{i}]` is of another kind than `prompt[0]`. "
                "Send all strings, all token ids or all lists of token ids.",
            )
    if kind is int:
        return [known_tokens(prompt, vocab_size, "prompt")]  # type: ignore[arg-type]  # all of one kind, seen above
    if kind is str:
        return prompt  # type: ignore[return-value]  # likewise
    return [_ids(one, vocab_size, f"prompt[{i}]") for i, one in enumerate(prompt)]


def samples(asked: Generation, prompt_count: int) -> int:
    """How many outputs each of `prompt_count` prompts is asked for."""
    each = asked.n or 1
    if each * prompt_count > limits.MAX_SEQUENCES:
        raise _wrong(
            "n" if prompt_count == 1 else "prompt",
            f"{prompt_count:,} prompts with n={each} make {each * prompt_count:,} sequences; one call may ask for "
            f"{limits.MAX_SEQUENCES:,}. Split it over several calls.",
        )
    return each


def seeds(asked: Generation, prompt_count: int, draw: Callable[[], int]) -> list[int]:
    """A seed for every output, by prompt, then by sample. Each is drawn where the request names none; a named one
    counts up over the samples of a prompt, so that what a prompt gets does not depend on its neighbours.
    """
    each = asked.n or 1
    if asked.seed is None:
        return [draw() for _ in range(prompt_count * each)]
    return [(asked.seed + sample) % 2**64 for _ in range(prompt_count) for sample in range(each)]  # 64 bits, no sign


def check_stream_options(asked: Generation) -> None:
    """OpenAI refuses them on an answer that is not streamed: they would do nothing."""
    if asked.stream_options is not None and not asked.stream:
        raise _wrong("stream_options", "`stream_options` needs `stream` to be true. Set it, or leave the options out.")


def max_tokens(asked: Generation, left: int) -> int:
    """How many output tokens are asked. When the request does not say: all that the context leaves to a chat, OpenAI's
    few to a completion. `left` is what the prompt leaves of the context; that more fits is not checked here.
    """
    told, param = asked.max_tokens, max_tokens_field(asked)
    if isinstance(asked, ChatRequest) and asked.max_completion_tokens is not None:
        told = asked.max_completion_tokens
    if told is None:
        told = max(1, left if isinstance(asked, ChatRequest) else min(COMPLETION_MAX_TOKENS, left))
    if (asked.min_tokens or 0) > told:
        raise _wrong("min_tokens", f"`min_tokens` is {asked.min_tokens}, more than the {told} of `{param}`. Lower it.")
    return told


def max_tokens_field(asked: Generation) -> str:
    """Which of its two names the request used."""
    new = isinstance(asked, ChatRequest) and asked.max_completion_tokens is not None
    return "max_completion_tokens" if new else "max_tokens"


def _ids(one: object, vocab_size: int, param: str) -> Sequence[int]:
    assert isinstance(one, list)  # the decoder let only str, int and list pass
    if not one:
        raise _wrong(param, f"`{param}` is an empty list of token ids. Send at least one token.")
    return known_tokens(one, vocab_size, param)


def _logprobs(asked: Generation) -> int | None:
    if isinstance(asked, ChatRequest):
        if asked.top_logprobs is not None and not asked.logprobs:
            if asked.top_logprobs == 0:
                return None
            raise _wrong(
                "top_logprobs", "`top_logprobs` needs `logprobs` to be true. Set it, or leave `top_logprobs` out."
            )
        return asked.top_logprobs or 0 if asked.logprobs else None
    return asked.logprobs if isinstance(asked, CompletionRequest) else None


def _logit_bias(asked: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = []
    for key, bias in asked.items():
        # ASCII digits only: int() would take "１" and " 1_0 " too
        if not (key.isascii() and key.isdecimal() and len(key) < 12 and int(key) < vocab_size):
            shown = key if len(key) <= 40 else key[:37] + "..."
            raise _wrong(
                f"logit_bias.{shown}",
                f"`logit_bias` has the key {shown!r}, which is no token id of this model: "
                f"they are 0 to {vocab_size - 1}.",
            )
        biases.append((int(key), bias))
    return tuple(biases)


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _wrong(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_value")
