"""What a client may ask, as types. Ranges live in the annotations, so validation and `/openapi.json` cannot disagree.

Unknown fields are ignored, as every OpenAI-compatible server does; fields that name a feature this server lacks are
not here but in `unsupported`, which refuses them by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from headway.wire import limits

Name = Annotated[str, Meta(min_length=1, max_length=limits.MAX_MODEL_NAME_CHARS)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=limits.MAX_STOP_CHARS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenCount = Annotated[int, Meta(ge=1)]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class StreamOptions(Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Generation(Struct, kw_only=True):
    """What chat and plain completions share. `None` means the documented default, as `null` does in OpenAI's API."""

    model: Name | None = None
    max_tokens: TokenCount | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1, description="-1 and 0 keep every token")] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=limits.MIN_SEED, le=limits.MAX_SEED)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    logit_bias: (
        Annotated[
            dict[str, Annotated[float, Meta(ge=-100, le=100)]],
            Meta(
                max_length=limits.MAX_LOGIT_BIAS,
                description="token id -> what is added to its logit",
                extra_json_schema={"propertyNames": {"pattern": "^[0-9]{1,11}$"}},
            ),
        ]
        | None
    ) = None
    n: Annotated[int, Meta(ge=1, le=limits.MAX_SAMPLES)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=limits.MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=limits.MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Meta(ge=-limits.MAX_PRIORITY, le=limits.MAX_PRIORITY)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None


class ContentPart(Struct, kw_only=True, omit_defaults=True):
    """A part of a message. This server's models read text only; `refusal` parts are a model's own earlier words."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Struct, kw_only=True, omit_defaults=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Struct, kw_only=True, omit_defaults=True):
    id: str | None = None
    type: str = "function"
    function: FunctionCall


class Message(Struct, kw_only=True, omit_defaults=True):
    """One turn. Which combinations make sense (who may have no content, say) the chat template knows."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None  # what tool_calls were called before
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class FunctionTool(Struct, kw_only=True, omit_defaults=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    type: Literal["function"] = "function"
    function: FunctionTool


class ChatRequest(Generation, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None  # which values are taken, `unsupported` says
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=limits.MAX_LOGPROBS)] | None = None


# One string, many strings, one list of token ids, many lists. A list of mixed kinds is refused by `prompts`;
# msgspec cannot say it, the published schema can.
Prompt = Annotated[
    str | list[str | TokenId | list[TokenId]],
    Meta(
        extra_json_schema={
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": limits.MAX_SEQUENCES},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
                {
                    "type": "array",
                    "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
                    "minItems": 1,
                    "maxItems": limits.MAX_SEQUENCES,
                },
            ]
        }
    ),
]


class CompletionRequest(Generation, kw_only=True):
    """POST /v1/completions."""

    prompt: Prompt
    logprobs: Annotated[int, Meta(ge=0, le=limits.MAX_LOGPROBS)] | None = None
    add_special_tokens: bool | None = None


class TokenizeRequest(Struct, kw_only=True):
    """POST /tokenize: a prompt, or a conversation."""

    model: Name | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, kw_only=True):
    """POST /detokenize."""

    model: Name | None = None
    tokens: list[TokenId]
