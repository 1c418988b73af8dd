"""A conversation to one prompt text, through the model's own chat template.

OpenAI's messages are first brought into the shape templates expect: content as one string, tool-call arguments as an
object, roles the template knows. A model that takes text only says so when it is given something else. Nothing a client
sent is dropped silently: what the template has no place for is either put into the content or refused.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from headway.core.errors import InvalidRequest, ModelError

# OpenAI's role -> the role templates know. A developer message is what a system message was called before.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})


class ChatTemplate:
    """One model's template, compiled once. Thread-safe.

    Args:
        source: the Jinja source, or None for a model that has none (every `render` is then refused).
        special_tokens: `bos_token`, `eos_token`, … as the template's variables.

    Raises (constructor):
        ModelError: the source is no valid template.
    """

    def __init__(self, source: str | None, special_tokens: dict[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self._template: jinja2.Template | None = None
        self.takes_tools = self._takes_tool_calls = False
        if source is None:
            return
        environment = _environment()
        try:
            variables = jinja2.meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template is invalid: {error}", code="bad_chat_template") from error
        self.takes_tools = "tools" in variables
        self._takes_tool_calls = "tool_calls" in source

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text. It holds its own special tokens, so encode it with `add_special_tokens=False`.

        `kwargs` are further variables of the template, e.g. `enable_thinking`.

        Raises:
            InvalidRequest: `param` names the message, `tools` or the variable at fault; or the template refused.
        """
        if self._template is None:
            raise InvalidRequest(
                "This model has no chat template, so it takes no messages. Use /v1/completions with a prompt.",
                param="messages",
                code="no_chat_template",
            )
        if tools and not self.takes_tools:
            raise InvalidRequest(
                "This model's chat template has no place for tools, so it cannot be given any. Leave `tools` out.",
                param="tools",
                code="unsupported_feature",
            )
        if kwargs and (taken := sorted(_OWN_VARIABLES & kwargs.keys())):
            raise InvalidRequest(
                f"`chat_template_kwargs` cannot set {taken[0]!r}, which is part of the request itself. Leave it out.",
                param="chat_template_kwargs",
                code="invalid_value",
            )
        shaped = [_shape(message, f"messages[{i}]", self._takes_tool_calls) for i, message in enumerate(messages)]
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    **(kwargs or {}),
                    "messages": shaped,
                    "tools": tools or None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except Exception as error:  # a template is a program: what it raises is anybody's guess
            raise InvalidRequest(
                f"The model's chat template refused these messages: {str(error).rstrip('.')}.",
                param="messages",
                code="chat_template_refused",
            ) from error


def _shape(message: Any, at: str, takes_tool_calls: bool) -> dict[str, Any]:
    """A copy of one message as templates expect it."""
    if not isinstance(message, dict):
        raise _wrong(at, "should be an object with a role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _wrong(f"{at}.role", f"is {role!r}; known roles are {', '.join(ROLES)}")
    shaped = {key: value for key, value in message.items() if value is not None}
    calls = _tool_calls(message, at) if role == "assistant" else []
    shaped["role"] = ROLES[role]
    shaped["content"] = _content(message, at, may_be_null=role == "assistant")
    shaped.pop("tool_calls", None)
    shaped.pop("function_call", None)
    if calls and takes_tool_calls:
        shaped["tool_calls"] = calls
    elif calls:
        # A template without tool calls would show the model an answer of a tool it never called. The tagged form is
        # the one most open models were trained on, and a client sees what its model sees.
        written = [f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>" for call in calls]
        shaped["content"] = "\n".join(filter(None, [shaped["content"], *written]))
    return shaped


def _content(message: dict[str, Any], at: str, *, may_be_null: bool) -> str:
    """Content as one string: templates concatenate it. Parts are joined by a newline, as vLLM does."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and may_be_null:
        return ""
    if content is None:
        raise InvalidRequest(
            f"`{at}.content` is required; add it.", param=f"{at}.content", code="missing_required_parameter"
        )
    if not isinstance(content, list):
        raise _wrong(f"{at}.content", f"should be a string or a list of parts, not {type(content).__name__}")
    return "\n".join(_part(part, f"{at}.content[{j}]") for j, part in enumerate(content))


def _part(part: Any, at: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    key = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}.get(str(kind))
    if key is None:
        raise InvalidRequest(
            f"`{at}` is of type {kind}; this model takes text only. Leave it out.",
            param=at,
            code="unsupported_feature",
        )
    text = part.get(key)
    if not isinstance(text, str):
        raise _wrong(f"{at}.{key}", "should be a string")
    return text


def _tool_calls(message: dict[str, Any], at: str) -> list[dict[str, Any]]:
    """The assistant's calls with arguments as an object, which is what templates print; the old `function_call` too."""
    calls = message.get("tool_calls")
    if calls is None:
        calls = [{"type": "function", "function": message["function_call"]}] if message.get("function_call") else []
    if not isinstance(calls, list):
        raise _wrong(f"{at}.tool_calls", "should be a list")
    return [_tool_call(call, f"{at}.tool_calls[{k}]") for k, call in enumerate(calls)]


def _tool_call(call: Any, at: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong(f"{at}.function", "should be an object with a name")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(value: Any) -> Any:
    """Parsed when it is a JSON object; else as it came: a model's own broken JSON must be quotable back to it."""
    if not isinstance(value, str):
        return {} if value is None else value
    try:
        parsed = json.loads(value or "{}")
    except (ValueError, RecursionError):
        return value
    return parsed if isinstance(parsed, dict) else value


def _wrong(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}` {what}.", param=param, code="invalid_value")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what was trained on; when serving it is just its content."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """What published templates are written against: Transformers' environment."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes HTML, which a model would read as it stands."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return dt.datetime.now().astimezone().strftime(form)
