"""The API described by the types that validate it, so the description cannot promise what the code does not do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args, get_type_hints

import msgspec

from headway.engine.config import EngineConfig
from headway.engine.engine import RECONFIGURABLE
from headway.gateway.background.batch.request import BatchRequest
from headway.gateway.dashboard.routes import PARAMETERS
from headway.gateway.edge import IGNORED_HEADER, MAX_IGNORED
from headway.gateway.promises import HEADERS, MAX_MS
from headway.setting import Setting
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
    responses.Version,
    responses.Index,
    ErrorBody,
)
_STATUS = {
    400: "The request is wrong; `param` names the field.",
    403: "Administration answers only the machine it runs on.",
    404: "No such model.",
    408: "The request body did not arrive in time.",
    409: "Not in the state that the object is in.",
    413: "The request body is too large.",
    429: "A limit or the queue is full; see Retry-After.",
    500: "A defect of the server.",
    503: "No capacity now, or the server is not ready; see Retry-After.",
    507: "The store or its disk is full; nothing was kept.",
}
_BODY = (400, 408, 413)  # of every route that takes one
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
_HTML = {"text/html": {"schema": {"type": "string"}}}
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
_HEADERS = {
    "x-request-id": {"description": "The client's own id when it sent a usable one.", "schema": {"type": "string"}},
}
_TOLD = {
    **_HEADERS,
    IGNORED_HEADER: {
        "description": "Fields of the body that this server does not know and ignored, "
        f"at most {MAX_IGNORED} by name; not there when there were none.",
        "schema": {"type": "string"},
    },
    "Server-Timing": {
        "description": "Where the time went, in ms: network, tokenise, queue, prefill, decode, gateway, total; at the "
        "start of a stream: network, tokenise, ttft.",
        "schema": {"type": "string"},
    },
}
_PROMISES = [
    {
        "name": name,
        "in": "header",
        "description": f"{meaning}, in ms; 0 for never. The server's own setting when left out.",
        "schema": {"type": "number", "minimum": 0, "maximum": MAX_MS},
    }
    for name, (_, meaning) in HEADERS.items()
]

Content = dict[str, dict[str, Any]]


def describe(names: Sequence[str], version: str, *, store: bool = False) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a server that answers to the model `names`; with a `store` or without."""
    types = (*_TYPES, BatchRequest) if store else _TYPES
    refs, components = msgspec.json.schema_components(types, ref_template=_REF)
    del refs  # every type is a component of its own name
    components["Settings"] = _settings()
    _add_unsupported(components["ChatRequest"], unsupported.CHAT)
    _add_unsupported(components["CompletionRequest"], unsupported.COMPLETION)
    if not store:
        _add_unsupported(components["ChatRequest"], {"background": (False,)})
        _add_unsupported(components["CompletionRequest"], {"background": (False,)})
    for name in ("ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest"):
        model = {"description": requests.MODEL_DESCRIPTION, "enum": [*names, None], "default": None}
        components[name]["properties"]["model"] = model
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headway", "version": version, "description": "LLM serving behind OpenAI's API."},
        "paths": {
            "/v1/chat/completions": _generation(
                "chatCompletions", "ChatRequest", _json("ChatCompletion") | _EVENTS, store=store
            ),
            "/v1/completions": _generation(
                "completions", "CompletionRequest", _json("Completion") | _EVENTS, store=store
            ),
            "/tokenize": _post("tokenize", "TokenizeRequest", _json("Tokenized"), (404,)),
            "/detokenize": _post("detokenize", "DetokenizeRequest", _json("Detokenized"), (404,)),
            "/v1/models": _get("models", _json("ModelList")),
            "/v1/models/{model}": _get("model", _json("ModelCard"), (404,), path_parameter="model"),
            "/": _get("index", _json("Index") | _HTML),
            "/dashboard": _get("dashboard", _HTML),
            "/dashboard/data": _dashboard_data(),
            "/version": _get("version", _json("Version")),
            "/health": _get("health", _json("Health"), (503,)),
            "/ping": _get("ping", _json("Health"), (503,)),
            "/ready": _get("ready", _json("Health"), (503,)),
            "/metrics": _get("metrics", _TEXT),
            "/load": _get("load", _OBJECT),
            "/openapi.json": _get("openapi", _OBJECT),
            "/admin/config": _get("config", _OBJECT, (403,)),
            "/admin/reconfigure": _post("reconfigure", "Settings", _OBJECT, (403,)),
            **(_store_paths() if store else {}),
        },
        "components": {"schemas": components},
    }


def _store_paths() -> dict[str, Any]:
    """What there is with a store. Its objects are OpenAI's, or shown in the guide."""

    def does(method: str, operation: str, *errors: int, one: bool = True) -> dict[str, Any]:
        got = _get(operation, _OBJECT, (*errors, *((404,) if one else ())), path_parameter="id" if one else None)
        return {method: got["get"]}

    content = _get("fileContent", {"application/octet-stream": {}}, (404,), path_parameter="id")
    return {
        "/v1/background": does("get", "listBackground", one=False),
        "/v1/background/{id}": does("get", "background") | does("delete", "deleteBackground", 409),
        "/v1/background/{id}/cancel": does("post", "cancelBackground"),
        "/v1/files": does("get", "listFiles", one=False) | does("post", "uploadFile", 400, 408, 413, 507, one=False),
        "/v1/files/{id}": does("get", "file") | does("delete", "deleteFile", 409),
        "/v1/files/{id}/content": content,
        "/v1/batches": does("get", "listBatches", one=False)
        | _post("createBatch", "BatchRequest", _OBJECT, (404, 429, 507)),
        "/v1/batches/{id}": does("get", "batch"),
        "/v1/batches/{id}/cancel": does("post", "cancelBatch", 409),
    }


def _dashboard_data() -> dict[str, Any]:
    data = _get("dashboardData", _OBJECT, (400,))
    data["get"]["parameters"] = [
        {"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}}
        for name, meaning in PARAMETERS.items()
    ]
    return data


def routes(described: dict[str, Any]) -> list[str]:
    """Every route of a description, as `GET /health`."""
    return [f"{method.upper()} {path}" for path, methods in described["paths"].items() for method in methods]


def _json(name: str) -> Content:
    return {"application/json": {"schema": {"$ref": _REF.format(name=name)}}}


def _post(operation: str, body: str, answer: Content, errors: Iterable[int] = ()) -> dict[str, Any]:
    return {
        "post": {
            "operationId": operation,
            "requestBody": {"required": True, "content": _json(body)},
            "responses": _responses(answer, (*_BODY, *errors)),
        }
    }


def _generation(operation: str, body: str, answer: Content, *, store: bool) -> dict[str, Any]:
    path = _post(operation, body, answer, (404, 429, 503, 507) if store else (404, 429, 503))
    if store:
        kept = {"description": "Kept, with `background`; ask its `url`.", "headers": _HEADERS, "content": _OBJECT}
        path["post"]["responses"]["202"] = kept
    path["post"]["parameters"] = _PROMISES
    path["post"]["responses"]["200"]["headers"] = _TOLD
    return path


def _settings() -> dict[str, Any]:
    """What `reconfigure` takes: some of the engine's settings."""
    hints = get_type_hints(EngineConfig, include_extras=True)
    properties = {}
    for name in RECONFIGURABLE:
        kind, setting = get_args(hints[name])
        properties[name] = {"type": "number" if kind is float else "integer", "description": setting.help}
        properties[name] |= {word: limit for word, limit in _limits(setting) if math.isfinite(limit)}
    return {"type": "object", "properties": properties, "additionalProperties": False, "minProperties": 1}


def _limits(setting: Setting) -> Iterator[tuple[str, float]]:
    yield "minimum", setting.low
    yield "maximum", setting.high


def _get(
    operation: str, answer: Content, errors: Iterable[int] = (), *, path_parameter: str | None = None
) -> dict[str, Any]:
    get: dict[str, Any] = {"operationId": operation, "responses": _responses(answer, errors)}
    if path_parameter is not None:
        get["parameters"] = [{"name": path_parameter, "in": "path", "required": True, "schema": {"type": "string"}}]
    return {"get": get}


def _responses(answer: Content, errors: Iterable[int]) -> dict[str, Any]:
    good = {"200": {"description": "The answer.", "headers": _HEADERS, "content": answer}}
    return good | {  # a defect may be anywhere
        str(status): {"description": _STATUS[status], "headers": _HEADERS, "content": _json("ErrorBody")}
        for status in sorted({500, *errors})
    }


def _add_unsupported(schema: dict[str, Any], table: dict[str, tuple[Any, ...]]) -> None:
    for field, harmless in table.items():
        schema["properties"][field] = {
            "enum": [None, *harmless],
            "description": "This server lacks the feature: only values that ask for nothing are accepted.",
        }
