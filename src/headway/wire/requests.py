"""What a client may ask, as types. Ranges live in the annotations, so validation and `/openapi.json` cannot disagree.

Unknown fields are ignored, as every OpenAI-compatible server does, and named in a response header; fields that name a
feature this server lacks are not here but in `unsupported`, which refuses them by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from headway.core.request import SAMPLING_RANGES
from headway.wire import limits

Name = Annotated[str, Meta(min_length=1, max_length=limits.MAX_MODEL_NAME_CHARS)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=limits.MAX_STOP_CHARS)]
TokenCount = Annotated[int, Meta(ge=1)]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


def sampling_range(name: str) -> Meta:
    """What the core takes, so that nothing passes here and fails there."""
    low, high = (int(end) if end == int(end) else end for end in SAMPLING_RANGES[name])
    return Meta(ge=low, le=high)


class StreamOptions(Struct, kw_only=True):
    include_usage: Annotated[
        bool | None, Meta(description="End the stream with an event that holds its usage. Default: false.")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None, Meta(description="With `include_usage`: the usage so far in every event. Default: false.")
    ] = None


MODEL_DESCRIPTION = "A name that `/v1/models` lists. Default: the first of them."
Model = Annotated[Name | None, Meta(description=MODEL_DESCRIPTION)]


class Generation(Struct, kw_only=True):
    """What chat and plain completions share. `None` means the documented default, as `null` does in OpenAI's API."""

    model: Model = None
    background: Annotated[
        bool | None,
        Meta(description="Answer 202 at once, and compute it when there is room; needs --store. Default: false."),
    ] = None
    max_tokens: Annotated[
        TokenCount | None,
        Meta(description="Most tokens to generate. Default: what the context leaves to a chat, 16 for a completion."),
    ] = None
    min_tokens: Annotated[
        Annotated[int, sampling_range("min_tokens")] | None,
        Meta(description="No end before so many tokens, other than by a stop string. Default: 0."),
    ] = None
    temperature: Annotated[
        Annotated[float, sampling_range("temperature")] | None,
        Meta(description="Randomness; 0 always takes the likeliest token. Default: what the model recommends, else 1."),
    ] = None
    top_p: Annotated[
        Annotated[float, sampling_range("top_p")] | None,
        Meta(
            description="Draw from the likeliest tokens that reach this probability together. Default: what the model "
            "recommends, else 1."
        ),
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None,
        Meta(
            description="Draw from so many of the likeliest tokens; -1 and 0 keep every token. Default: what the model "
            "recommends, else 0."
        ),
    ] = None
    min_p: Annotated[
        Annotated[float, sampling_range("min_p")] | None,
        Meta(
            description="Leave out tokens less likely than this share of the likeliest. Default: what the model "
            "recommends, else 0."
        ),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=limits.MIN_SEED, le=limits.MAX_SEED)] | None,
        Meta(
            description="Same seed, same prompt: same draws. Sample i draws with seed + i. Default: another seed every "
            "time."
        ),
    ] = None
    frequency_penalty: Annotated[
        Annotated[float, sampling_range("frequency_penalty")] | None,
        Meta(description="Taken from a token's logit for every time that the output already has it. Default: 0."),
    ] = None
    presence_penalty: Annotated[
        Annotated[float, sampling_range("presence_penalty")] | None,
        Meta(description="Taken once from the logit of a token that the output already has. Default: 0."),
    ] = None
    repetition_penalty: Annotated[
        Annotated[float, sampling_range("repetition_penalty")] | None,
        Meta(
            description="Above 1 makes tokens of prompt and output less likely to come again. Default: what the model "
            "recommends, else 1."
        ),
    ] = None
    logit_bias: Annotated[
        Annotated[
            dict[str, Annotated[float, Meta(ge=-100, le=100)]],
            Meta(max_length=limits.MAX_LOGIT_BIAS, extra_json_schema={"propertyNames": {"pattern": "^[0-9]{1,11}$"}}),
        ]
        | None,
        Meta(description="Token id -> what is added to its logit, -100 to 100. Default: nothing."),
    ] = None
    n: Annotated[
        Annotated[int, Meta(ge=1, le=limits.MAX_SAMPLES)] | None,
        Meta(description="How many outputs each prompt gets. Default: 1."),
    ] = None
    stop: Annotated[
        StopString | Annotated[list[StopString], Meta(max_length=limits.MAX_STOP_STRINGS)] | None,
        Meta(description="The output ends before the first of these strings. Default: none."),
    ] = None
    stop_token_ids: Annotated[
        Annotated[list[TokenId], Meta(max_length=limits.MAX_STOP_TOKEN_IDS)] | None,
        Meta(description="Tokens that end the output beside the model's own. Default: none."),
    ] = None
    ignore_eos: Annotated[
        bool | None, Meta(description="Go on to `max_tokens` where the model would end. Default: false.")
    ] = None
    priority: Annotated[
        Annotated[int, Meta(ge=-limits.MAX_PRIORITY, le=limits.MAX_PRIORITY)] | None,
        Meta(description="Lower is sooner. Default: 0."),
    ] = None
    cache_salt: Annotated[
        Annotated[str, Meta(max_length=limits.MAX_CACHE_SALT_CHARS)] | None,
        Meta(description="Prefixes are shared only between requests of the same salt. Default: the empty one."),
    ] = None
    stream: Annotated[
        bool | None, Meta(description="Answer with server-sent events as tokens appear. Default: false.")
    ] = None
    stream_options: Annotated[
        StreamOptions | None,
        Meta(
            description="With `stream` only. `include_usage` ends the stream with its usage; `continuous_usage_stats` "
            "tells it in every event. Default: neither."
        ),
    ] = None
    user: Annotated[str | None, Meta(description="Accepted and not used.")] = None


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


Messages = Annotated[list[Message], Meta(min_length=1)]
Tools = Annotated[
    list[Tool] | None,
    Meta(description="Functions shown to a model whose template has place for them. Default: none."),
]
AddGenerationPrompt = Annotated[
    bool | None, Meta(description="End the prompt with the opening of the assistant's turn. Default: true.")
]
TemplateKwargs = Annotated[
    dict[str, Any] | None,
    Meta(description="Further variables of the chat template, such as `enable_thinking`. Default: none."),
]


class ChatRequest(Generation, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[Messages, Meta(description="The conversation, oldest message first.")]
    tools: Tools = None
    tool_choice: str | dict[str, Any] | None = None  # which values are taken, `unsupported` says
    add_generation_prompt: AddGenerationPrompt = None
    chat_template_kwargs: TemplateKwargs = None
    max_completion_tokens: Annotated[
        TokenCount | None, Meta(description="The newer name of `max_tokens`; wins where both are sent.")
    ] = None
    logprobs: Annotated[
        bool | None, Meta(description="Tell the log-probability of every token of the output. Default: false.")
    ] = None
    top_logprobs: Annotated[
        Annotated[int, sampling_range("logprobs")] | None,
        Meta(description="With `logprobs`: of so many likeliest tokens at every place too. Default: 0."),
    ] = None


# One string, many strings, one list of token ids, many lists. A list of mixed kinds is refused by `prompts`;
# msgspec cannot say it, the published schema can.
Prompt = Annotated[
    str | list[str | TokenId | list[TokenId]],
    Meta(
        description="What to continue: one text or several, or the token ids of one or several.",
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
        },
    ),
]


class CompletionRequest(Generation, kw_only=True):
    """POST /v1/completions."""

    prompt: Prompt
    logprobs: Annotated[
        Annotated[int, sampling_range("logprobs")] | None,
        Meta(
            description="Tell the log-probability of every token of the output, and of so many likeliest tokens at its "
            "place. Default: none."
        ),
    ] = None
    add_special_tokens: Annotated[
        bool | None, Meta(description="Begin texts as the tokenizer does, for instance with a BOS. Default: true.")
    ] = None


class TokenizeRequest(Struct, kw_only=True):
    """POST /tokenize: a prompt, or a conversation."""

    model: Model = None
    prompt: Annotated[str | None, Meta(description="The text; either this or `messages`.")] = None
    messages: Annotated[
        Messages | None, Meta(description="A conversation, put into the chat template; either this or `prompt`.")
    ] = None
    tools: Tools = None
    add_generation_prompt: AddGenerationPrompt = None
    chat_template_kwargs: TemplateKwargs = None
    add_special_tokens: Annotated[
        bool | None,
        Meta(description="Begin the text as the tokenizer does. Default: true for `prompt`, false for `messages`."),
    ] = None
    return_token_strs: Annotated[bool | None, Meta(description="Each token's text as well. Default: false.")] = None


class DetokenizeRequest(Struct, kw_only=True):
    """POST /detokenize."""

    model: Model = None
    tokens: Annotated[list[TokenId], Meta(description="Token ids of this model, at most as many as its context holds.")]
