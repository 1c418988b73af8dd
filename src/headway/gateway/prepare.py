"""A request body -> the core requests it asks for. Blocking work, done on a thread: parse, check, render, tokenise."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headway.core.errors import ContextLengthExceeded, InvalidRequest, NotFound
from headway.core.request import Request
from headway.gateway.backend import Backend
from headway.wire import checks, unsupported
from headway.wire.parse import parse
from headway.wire.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Generation,
    Message,
    TokenizeRequest,
    Tool,
)
from headway.wire.responses import Detokenized, Tokenized

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions
# Text longer than this per token of context cannot fit, so it is refused before minutes are spent tokenising it. Real
# vocabularies have no longer tokens but runs of blanks.
MAX_CHARS_PER_TOKEN = 128

_chat = msgspec.json.Decoder(ChatRequest)
_completion = msgspec.json.Decoder(CompletionRequest)
_tokenize = msgspec.json.Decoder(TokenizeRequest)
_detokenize = msgspec.json.Decoder(DetokenizeRequest)


@dataclass(frozen=True, slots=True)
class Call:
    """One API call, ready to be submitted. Choice i of the answer is the output of `requests[i]`."""

    id: str
    created: int  # seconds since the epoch
    model: str
    requests: list[Request]  # by prompt, then by sample
    prompt_tokens: int  # each prompt once, however many samples it has
    samples: int
    stream: bool
    include_usage: bool
    continuous_usage: bool


class Preparer:
    """Knows the model's names, tokenizer and template. Thread-safe: it holds no state."""

    def __init__(self, backend: Backend, names: Sequence[str]) -> None:
        self._backend = backend
        self._names = tuple(names)

    def chat(self, body: bytes) -> Call:
        asked = parse(body, _chat)
        unsupported.refuse_unsupported(body, unsupported.CHAT)
        name = self._model(asked.model)
        tools = None if asked.tool_choice == "none" else asked.tools
        text = self._render(asked.messages, tools, asked.add_generation_prompt, asked.chat_template_kwargs)
        tokens = self._backend.tokenizer.encode(text, add_special_tokens=False)  # the template writes its own
        return self._call(f"chatcmpl-{random.getrandbits(128):032x}", name, asked, [tokens], "messages")

    def completion(self, body: bytes) -> Call:
        asked = parse(body, _completion)
        unsupported.refuse_unsupported(body, unsupported.COMPLETION)
        name = self._model(asked.model)
        prompts = checks.prompts(asked, self._backend.tokenizer.vocab_size)
        checks.check_sizes(asked, len(prompts))
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        tokens: list[Sequence[int]] = [prompt for prompt in prompts if not isinstance(prompt, str)]
        if texts:
            for text in texts:
                self._check_chars(text, "prompt")
            special = asked.add_special_tokens is not False
            tokens = list(self._backend.tokenizer.encode_batch(texts, add_special_tokens=special))
        return self._call(f"cmpl-{random.getrandbits(128):032x}", name, asked, tokens, "prompt")

    def tokenize(self, body: bytes) -> Tokenized:
        asked = parse(body, _tokenize)
        self._model(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise InvalidRequest("Send either `prompt` or `messages`.", param="prompt", code="invalid_value")
        if asked.messages is not None:
            text = self._render(asked.messages, asked.tools, asked.add_generation_prompt, asked.chat_template_kwargs)
        else:
            text = asked.prompt or ""
        special = asked.messages is None if asked.add_special_tokens is None else asked.add_special_tokens
        tokenizer = self._backend.tokenizer
        tokens = tokenizer.encode(text, add_special_tokens=special)
        strings = [tokenizer.token_text(token) for token in tokens] if asked.return_token_strs else None
        return Tokenized(
            count=len(tokens), max_model_len=self._backend.max_model_len, tokens=tokens, token_strs=strings
        )

    def detokenize(self, body: bytes) -> Detokenized:
        asked = parse(body, _detokenize)
        self._model(asked.model)
        tokens = checks.check_tokens(asked.tokens, self._backend.tokenizer.vocab_size, "tokens")
        return Detokenized(prompt=self._backend.tokenizer.decode(tokens, skip_special_tokens=False))

    def _model(self, name: str | None) -> str:
        if name is not None and name not in self._names:
            raise NotFound(
                f"The model {name!r} is not served here. Ask for {' or '.join(map(repr, self._names))}.",
                param="model",
                code="model_not_found",
            )
        return name or self._names[0]

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        add_generation_prompt: bool | None,
        kwargs: dict[str, Any] | None,
    ) -> str:
        text = self._backend.chat_template.render(
            [msgspec.to_builtins(message) for message in messages],
            tools=[msgspec.to_builtins(tool) for tool in tools] if tools else None,
            add_generation_prompt=add_generation_prompt is not False,
            kwargs=kwargs,
        )
        self._check_chars(text, "messages")
        return text

    def _check_chars(self, text: str, param: str) -> None:
        context = self._backend.max_model_len
        if len(text) > context * MAX_CHARS_PER_TOKEN:
            raise ContextLengthExceeded(
                f"`{param}` comes to {len(text):,} characters, far more than the {context:,} tokens of this model's "
                "context can hold. Shorten it.",
                param=param,
            )

    def _call(
        self, id: str, model: str, asked: Generation, prompts: list[Sequence[int]] | list[list[int]], param: str
    ) -> Call:
        seed = random.getrandbits(63)  # draws of tokens, not secrets
        params = checks.sampling_params(asked, vocab_size=self._backend.tokenizer.vocab_size, seed=seed)
        samples = asked.n or 1
        requests: list[Request] = []
        for prompt in prompts:
            max_tokens = self._max_tokens(asked, len(prompt), param)
            for sample in range(samples):
                requests.append(
                    Request(
                        id=f"{id}-{len(requests)}",
                        prompt=prompt,
                        max_tokens=max_tokens,
                        params=replace(params, seed=(params.seed + sample) % 2**64) if sample else params,
                        priority=asked.priority or 0,
                    )
                )
        options = asked.stream_options
        return Call(
            id=id,
            created=int(time.time()),
            model=model,
            requests=requests,
            prompt_tokens=sum(map(len, prompts)),
            samples=samples,
            stream=bool(asked.stream),
            include_usage=options is not None and bool(options.include_usage),
            continuous_usage=options is not None and bool(options.include_usage and options.continuous_usage_stats),
        )

    def _max_tokens(self, asked: Generation, prompt_tokens: int, param: str) -> int:
        context = self._backend.max_model_len
        if prompt_tokens == 0:
            raise InvalidRequest(
                f"`{param}` comes to no tokens at all. Send some text.", param=param, code="invalid_value"
            )
        left = context - prompt_tokens
        if left < 1:
            raise ContextLengthExceeded(
                f"This model's context is {context:,} tokens, but `{param}` alone has {prompt_tokens:,}, which leaves "
                "no room for an answer. Shorten it.",
                param=param,
            )
        default = left if isinstance(asked, ChatRequest) else min(COMPLETION_MAX_TOKENS, left)
        max_tokens = checks.max_tokens(asked, default)
        if max_tokens > left:
            raise ContextLengthExceeded(
                f"This model's context is {context:,} tokens, but {prompt_tokens + max_tokens:,} were asked: "
                f"{prompt_tokens:,} in `{param}` and {max_tokens:,} of output. Shorten the input, or ask for at most "
                f"{left:,} output tokens.",
                param=param,
            )
        return max_tokens
