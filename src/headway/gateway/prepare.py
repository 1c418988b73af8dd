"""A request body -> the core requests it asks for. Blocking work, done on a thread: parse, check, render, tokenise."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headway.core.errors import ContextLengthExceeded, InvalidRequest, NotFound
from headway.core.request import Request
from headway.gateway.backend import Backend
from headway.wire import translate, unsupported
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

# Text longer than this per token of context cannot fit, so it is refused before minutes are spent tokenising it. Real
# vocabularies have no longer tokens but runs of blanks.
MAX_CHARS_PER_TOKEN = 128

CHAT_FIELDS = frozenset(ChatRequest.__struct_fields__)
COMPLETION_FIELDS = frozenset(CompletionRequest.__struct_fields__)

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
    ignored: tuple[str, ...]  # fields of the body that mean nothing here
    fields: Mapping[str, str]  # the core's word for a part of a request -> the field in which this call sent it


class Preparer:
    """Knows the model's names, sampling defaults, tokenizer and template. Thread-safe: it holds no state."""

    def __init__(self, backend: Backend, names: Sequence[str], sampling_defaults: Mapping[str, float]) -> None:
        self._backend = backend
        self._names = tuple(names)
        self._sampling_defaults = sampling_defaults

    def chat(self, body: bytes) -> Call:
        asked = parse(body, _chat)
        ignored = unsupported.refuse_unsupported(body, unsupported.CHAT, CHAT_FIELDS)
        name = self._model(asked.model)
        tools = None if asked.tool_choice == "none" else asked.tools
        text = self._render(asked.messages, tools, asked.add_generation_prompt, asked.chat_template_kwargs)
        tokens = self._backend.tokenizer.encode(text, add_special_tokens=False)  # the template writes its own
        return self._call(
            f"chatcmpl-{random.getrandbits(128):032x}", name, asked, [tokens], param="messages", ignored=ignored
        )

    def completion(self, body: bytes) -> Call:
        asked = parse(body, _completion)
        ignored = unsupported.refuse_unsupported(body, unsupported.COMPLETION, COMPLETION_FIELDS)
        name = self._model(asked.model)
        prompts = translate.prompts(asked, self._backend.tokenizer.vocab_size)
        translate.samples(asked, len(prompts))  # before they are tokenised
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        tokens: list[Sequence[int]] = [prompt for prompt in prompts if not isinstance(prompt, str)]
        if texts:
            for text in texts:
                self._check_chars(text, "prompt")
            special = asked.add_special_tokens is not False
            tokens = list(self._backend.tokenizer.encode_batch(texts, add_special_tokens=special))
        return self._call(f"cmpl-{random.getrandbits(128):032x}", name, asked, tokens, param="prompt", ignored=ignored)

    def tokenize(self, body: bytes) -> Tokenized:
        asked = parse(body, _tokenize)
        self._model(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise InvalidRequest("Send either `prompt` or `messages`.", param="prompt", code="invalid_value")
        if asked.messages is not None:
            text = self._render(asked.messages, asked.tools, asked.add_generation_prompt, asked.chat_template_kwargs)
        else:
            text = asked.prompt or ""
            self._check_chars(text, "prompt")
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
        context = self._backend.max_model_len
        if len(asked.tokens) > context:
            raise InvalidRequest(
                f"`tokens` has {len(asked.tokens):,} token ids; the limit is this model's context, {context:,}. Send "
                "them in parts.",
                param="tokens",
                code="invalid_value",
            )
        tokens = translate.known_tokens(asked.tokens, self._backend.tokenizer.vocab_size, "tokens")
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
        self,
        id: str,
        model: str,
        asked: Generation,
        prompts: list[Sequence[int]] | list[list[int]],
        *,
        param: str,
        ignored: tuple[str, ...],
    ) -> Call:
        translate.check_stream_options(asked)
        params = translate.sampling_params(
            asked, vocab_size=self._backend.tokenizer.vocab_size, defaults=self._sampling_defaults
        )
        samples = translate.samples(asked, len(prompts))
        seeds = translate.seeds(asked, len(prompts), lambda: random.getrandbits(64))  # draws of tokens, not secrets
        requests = []
        for number, seed in enumerate(seeds):
            prompt = prompts[number // samples]
            requests.append(
                Request(
                    id=f"{id}-{number}",
                    prompt=prompt,
                    max_tokens=translate.max_tokens(asked, self._backend.max_model_len - len(prompt)),
                    params=replace(params, seed=seed),
                    priority=asked.priority or 0,
                    cache_scope=asked.cache_salt or "",
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
            ignored=ignored,
            fields={
                "prompt": param,
                "max_tokens": translate.max_tokens_field(asked),
                "n": "n" if samples > 1 else param,
            },
        )
