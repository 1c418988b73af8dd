"""Fields that ask for something this server does not do, and the values with which they ask for nothing.

Ignoring such a field would answer a question nobody asked: a client that wants JSON and gets prose is worse off than
one that gets a clear 400. Fields in neither this table nor `requests` are ignored, and told by name.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import msgspec

from headway.core.errors import InvalidRequest

# name -> values that change nothing. `null` never does.
GENERATION: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "best_of": (1,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logits_processors": ([],),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "return_token_ids": (False,),
}
CHAT: dict[str, tuple[Any, ...]] = GENERATION | {
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "echo": (False,),
    "continue_final_message": (False,),
    "chat_template": (),
    "documents": ([],),
}
COMPLETION: dict[str, tuple[Any, ...]] = GENERATION | {
    "echo": (False,),
    "suffix": ("",),
}

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def refuse_unsupported(body: bytes, table: dict[str, tuple[Any, ...]], known: Container[str]) -> tuple[str, ...]:
    """Raise `InvalidRequest` for the first field of the JSON object `body` that asks for what `table` lacks.

    Returns the fields that are in neither `table` nor `known`.
    """
    ignored = []
    for name, raw in _fields.decode(body).items():
        harmless = table.get(name)
        if harmless is None:
            if name not in known:
                ignored.append(name)
        elif not _asks_nothing(raw, harmless):
            allowed = "".join(f" or send {msgspec.json.encode(one).decode()}" for one in harmless)
            raise InvalidRequest(
                f"`{name}` asks for a feature this server does not have. Leave it out{allowed}.",
                param=name,
                code="unsupported_parameter",
            )
    return tuple(ignored)


def _asks_nothing(raw: msgspec.Raw, harmless: tuple[Any, ...]) -> bool:
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:  # a number beyond every type
        return False
    # 1 == True in Python, not in JSON
    return value is None or any(value == one and (type(value) is bool) == (type(one) is bool) for one in harmless)
