"""OpenAI's messages through a model's template: nothing lost, nothing guessed, every refusal names its place."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import InvalidRequest, ModelError
from headway.models import ChatTemplate, Model

SIMPLE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
TOOLS = """
{%- if tools %}{{ tools | tojson }}|{% endif %}
{%- for m in messages %}[{{ m.role }}]{{ m.content }}
{%- for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}
{%- endfor %}"""
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def render(source: str | None, messages: list[Any], **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages, **options)


def call(name: str, arguments: str, call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def refused(source: str | None, messages: list[Any], **options: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        render(source, messages, **options)
    return caught.value


def test_the_default_model_speaks_its_own_format(default_model: Model) -> None:
    template = ChatTemplate(default_model.chat_template, default_model.special_tokens)
    text = template.render([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert text == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("plain", "plain"),
        ("", ""),
        ([{"type": "text", "text": "one"}], "one"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
        ([{"type": "input_text", "text": "one"}], "one"),
        ([], ""),
    ],
)
def test_content_reaches_the_template_as_one_string(content: object, expected: str) -> None:
    assert render(SIMPLE, [{"role": "user", "content": content}]) == f"[user]{expected}>"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": 7}, "messages[1].content"),
        ({"role": "user", "content": {"text": "x"}}, "messages[1].content"),
        (
            {"role": "user", "content": [{"type": "text", "text": "ok"}, {"type": "image_url"}]},
            "messages[1].content[1]",
        ),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": ["bare"]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [{"type": ["text"], "text": "x"}]}, "messages[1].content[0]"),
        ({"role": "robot", "content": "x"}, "messages[1].role"),
        ({"role": None, "content": "x"}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ({"content": "x"}, "messages[1].role"),
        ("text", "messages[1]"),
        (None, "messages[1]"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": ["x"]}, "messages[1].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[1].tool_calls[0].function"),
    ],
)
def test_a_message_that_is_wrong_is_named(message: object, param: str) -> None:
    error = refused(SIMPLE, [{"role": "user", "content": "fine"}, message])
    assert (error.param, error.status) == (param, 400)
    assert error.code in {"invalid_value", "missing_required_parameter", "unsupported_feature"}
    assert error.message.endswith(".")


def test_what_is_not_text_is_refused_as_a_feature_the_model_lacks() -> None:
    error = refused(SIMPLE, [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}])
    assert "of type image_url; this model takes text only" in error.message
    assert error.code == "unsupported_feature"


def test_roles_are_those_templates_know() -> None:
    roles = ["developer", "system", "user", "assistant", "tool", "function"]
    text = render(SIMPLE, [{"role": role, "content": role[0]} for role in roles], add_generation_prompt=False)
    assert text == "[system]d[system]s[user]u[assistant]a[tool]t[tool]f"


CONVERSATION = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "tool_calls": [call("weather", '{"city": "Zürich"}')]},
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]


def test_tool_calls_reach_a_template_that_knows_them_with_parsed_arguments() -> None:
    text = render(TOOLS, CONVERSATION, tools=[WEATHER])
    assert text.endswith('[user]Weather?[assistant](weather {"city": "Zürich"})[tool]sunny')
    assert text.startswith('[{"type": "function"')


def test_tool_calls_stay_visible_in_a_template_that_does_not_know_them() -> None:
    text = render(SIMPLE, CONVERSATION, add_generation_prompt=False)
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
    assert text == f"[user]Weather?[assistant]{written}[tool]sunny"
    both = [{"role": "assistant", "content": "Looking.", "tool_calls": [call("a", "{}"), call("b", "")]}]
    assert render(SIMPLE, both, add_generation_prompt=False) == (
        '[assistant]Looking.\n<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>'
    )


def test_the_old_function_call_is_a_tool_call() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}}
    assert render(TOOLS, [old]) == '[assistant](f {"x": 1})'


@pytest.mark.parametrize("arguments", ["{broken", "[1]", "7", "[" * 100_000])
def test_arguments_that_are_no_object_are_quoted_as_they_came(arguments: str) -> None:
    text = render(TOOLS, [{"role": "assistant", "content": "", "tool_calls": [call("f", arguments)]}])
    assert arguments in text


def test_null_content_of_an_assistant_is_empty() -> None:
    assert render(SIMPLE, [{"role": "assistant", "content": None}], add_generation_prompt=False) == "[assistant]"


def test_tools_for_a_template_without_any_are_refused() -> None:
    error = refused(SIMPLE, [{"role": "user", "content": "x"}], tools=[WEATHER])
    assert error.param == "tools"
    assert render(SIMPLE, [{"role": "user", "content": "x"}], tools=[]) == "[user]x>"
    assert not ChatTemplate(SIMPLE, {}).takes_tools
    assert ChatTemplate(TOOLS, {}).takes_tools


def test_a_model_without_a_template_says_what_to_use() -> None:
    error = refused(None, [{"role": "user", "content": "x"}])
    assert (error.param, error.code) == ("messages", "no_chat_template")
    assert "/v1/completions" in error.message


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[9].content.x }}", "no element 9"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ ''.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "[Rr]ange"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_what_a_template_raises_is_the_requests_error(source: str, says: str) -> None:
    error = refused(source, [{"role": "user", "content": "x"}])
    assert (error.param, error.code) == ("messages", "chat_template_refused")
    with pytest.raises(InvalidRequest, match=says):
        raise error


def test_a_template_that_is_no_jinja_is_the_models_error() -> None:
    with pytest.raises(ModelError, match="chat template is invalid"):
        ChatTemplate("{% for %}", {})


def test_published_templates_find_what_they_were_written_against() -> None:
    source = """
    {%- for m in messages %}
        {%- if loop.index > 2 %}{% break %}{% endif %}
        {%- if m.role == 'user' %}{{ m.content }},{% else %}{% generation %}{{ m.content }}{% endgeneration %}
        {%- endif %}
    {% endfor %}
    {{- bos_token ~ strftime_now('%Y') ~ ({'a': '<é>'} | tojson) ~ enable_thinking }}"""
    messages = [{"role": role, "content": role} for role in ("user", "assistant", "user", "assistant")]
    year = dt.datetime.now().astimezone().year
    assert render(source, messages, kwargs={"enable_thinking": False}) == f'user,assistant<s>{year}{{"a": "<é>"}}False'


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_a_variable_of_the_request_itself_cannot_be_replaced(name: str) -> None:
    error = refused(SIMPLE, [{"role": "user", "content": "x"}], kwargs={name: []})
    assert error.param == "chat_template_kwargs"


def test_messages_are_not_changed() -> None:
    parts = [{"type": "text", "text": "x"}]
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call("f", "{}")]},
    ]
    copy = [dict(message) for message in messages]
    render(TOOLS, messages)
    assert messages == copy
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == "{}"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["user", "text", "assistant"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "tool_calls", "function", "name"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


COMPILED = [ChatTemplate(SIMPLE, {}), ChatTemplate(TOOLS, {})]


@settings(max_examples=200, deadline=None)
@given(messages=st.lists(anything, max_size=3), template=st.sampled_from(COMPILED))
def test_any_messages_are_rendered_or_refused(messages: list[Any], template: ChatTemplate) -> None:
    try:
        assert isinstance(template.render(messages), str)
    except InvalidRequest as error:
        assert error.param
        assert error.param.startswith("messages")
