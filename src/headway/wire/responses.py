"""What Headway answers, in OpenAI's shapes. Streams are built by `chunks`; the types of their parts are here too."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

FinishReason = Annotated[str, Meta(extra_json_schema={"enum": ["stop", "length"]})]


class PromptTokensDetails(Struct, kw_only=True):
    cached_tokens: int


class UsageBody(Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class TopLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, kw_only=True):
    content: list[ChatTokenLogprob]
    refusal: None = None


class AssistantMessage(Struct, kw_only=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody


class CompletionLogprobs(Struct, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class Completion(Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody


class ModelCard(Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "headway"
    max_model_len: int
    sampling_defaults: Annotated[
        dict[str, float], Meta(description="What fields that a request leaves out are taken to be.")
    ]


class ModelList(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokenized(Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(Struct, kw_only=True):
    prompt: str


class Version(Struct, kw_only=True):
    version: str


class Index(Struct, kw_only=True):
    server: Literal["headway"] = "headway"
    version: str
    models: list[str]
    routes: list[str]


class Health(Struct, kw_only=True):
    status: Literal["ok"] = "ok"
