"""The API described by the types that validate it, so the description cannot promise what the code does not do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headway.wire import requests, responses, unsupported
from headway.wire.errors import ErrorBody

_TYPES = (
    requests.ChatRequest,
    requests.CompletionRequest,
    requests.TokenizeRequest,
    requests.DetokenizeRequest,
    responses.ChatCompletion,
    responses.Completion,
    responses.ModelCard,
    responses.ModelList,
    responses.Tokenized,
    responses.Detokenized,
    responses.Health,
    ErrorBody,
)
_ERRORS = {
    400: "The request is wrong; `param` names the field.",
    404: "No such model.",
    408: "The request body did not arrive in time.",
    413: "The request body is too large.",
    429: "A limit or the queue is full; see Retry-After.",
    500: "A defect of the server.",
    503: "No capacity now, or the server is not ready; see Retry-After.",
}
_REF = "#/components/schemas/{name}"
_EVENTS = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "description": "With `stream`, each server-sent event: a chunk or an error as JSON, at last `[DONE]`.",
            "properties": {"data": {"type": "string"}, "event": {"const": "message"}},
            "required": ["data"],
        }
    }
}
_TEXT = {"text/plain": {"schema": {"type": "string"}}}
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
_HEADERS = {
    "x-request-id": {"description": "The client's own id when it sent a usable one.", "schema": {"type": "string"}},
}


Content = dict[str, dict[str, Any]]


def describe(names: Sequence[str], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a server that answers to the model `names`."""
    refs, components = msgspec.json.schema_components(_TYPES, ref_template=_REF)
    del refs  # every type is a component of its own name
    _add_unsupported(components["ChatRequest"], unsupported.CHAT)
    _add_unsupported(components["CompletionRequest"], unsupported.COMPLETION)
    for name in ("ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest"):
        components[name]["properties"]["model"] = {"enum": [*names, None], "default": None}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headway", "version": version, "description": "LLM serving behind OpenAI's API."},
        "paths": {
            "/v1/chat/completions": _post("chatCompletions", "ChatRequest", _json("ChatCompletion") | _EVENTS),
            "/v1/completions": _post("completions", "CompletionRequest", _json("Completion") | _EVENTS),
            "/tokenize": _post("tokenize", "TokenizeRequest", _json("Tokenized")),
            "/detokenize": _post("detokenize", "DetokenizeRequest", _json("Detokenized")),
            "/v1/models": _get("models", _json("ModelList")),
            "/v1/models/{model}": _get("model", _json("ModelCard"), path_parameter="model"),
            "/health": _get("health", _json("Health")),
            "/ready": _get("ready", _json("Health")),
            "/metrics": _get("metrics", _TEXT),
            "/load": _get("load", _OBJECT),
            "/openapi.json": _get("openapi", _OBJECT),
        },
        "components": {"schemas": components},
    }


def _json(name: str) -> Content:
    return {"application/json": {"schema": {"$ref": _REF.format(name=name)}}}


def _post(operation: str, body: str, answer: Content) -> dict[str, Any]:
    return {
        "post": {
            "operationId": operation,
            "requestBody": {"required": True, "content": _json(body)},
            "responses": _responses(answer),
        }
    }


def _get(operation: str, answer: Content, *, path_parameter: str | None = None) -> dict[str, Any]:
    get: dict[str, Any] = {"operationId": operation, "responses": _responses(answer)}
    if path_parameter is not None:
        get["parameters"] = [{"name": path_parameter, "in": "path", "required": True, "schema": {"type": "string"}}]
    return {"get": get}


def _responses(answer: Content) -> dict[str, Any]:
    errors = {
        str(status): {"description": text, "headers": _HEADERS, "content": _json("ErrorBody")}
        for status, text in _ERRORS.items()
    }
    return {"200": {"description": "The answer.", "headers": _HEADERS, "content": answer}, **errors}


def _add_unsupported(schema: dict[str, Any], table: dict[str, tuple[Any, ...]]) -> None:
    for field, harmless in table.items():
        schema["properties"][field] = {
            "enum": [None, *harmless],
            "description": "This server lacks the feature: only values that ask for nothing are accepted.",
        }
