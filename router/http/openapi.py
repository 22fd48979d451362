"""OpenAPI document of the HTTP API, derived from the models of requests and responses."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from flyserve.core.version import VERSION
from router.http.chat import ChatRequest
from router.http.chat_objects import ChatChunk, ChatCompletion
from router.http.completions import CompletionRequest
from router.http.models import DRAFT_SUFFIX
from router.http.objects import (
    Completion,
    Detokenized,
    ErrorResponse,
    Health,
    ModelList,
    ModelObject,
    Tokenized,
    TokenizerInfo,
    Version,
)
from router.http.responses.fields import ResponsesRequest
from router.http.responses.objects import ResponseObject
from router.http.tokenization import DetokenizeRequest, TokenizeRequest

_REFERENCE = "#/components/schemas/{model}"
_REQUESTS: tuple[type[BaseModel], ...] = (
    CompletionRequest,
    ChatRequest,
    TokenizeRequest,
    DetokenizeRequest,
    ResponsesRequest,
)
_RESPONSES: tuple[type[BaseModel], ...] = (
    Completion,
    ChatCompletion,
    ChatChunk,
    ResponseObject,
    ModelList,
    ModelObject,
    Tokenized,
    Detokenized,
    TokenizerInfo,
    Health,
    Version,
    ErrorResponse,
)
_METRICS = {
    "description": "Prometheus' text format",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}
_EVENT = "events of OpenAI's Responses API; an error in mid-stream is an event, too."
_STREAM = "chunks as server-sent events, the last of them `[DONE]`; an error in mid-stream is an event, too."
_ERRORS = {
    "400": "A field is unknown, unsupported, missing or out of range; `param` names it.",
    "404": "No such path or model.",
    "405": "The path has other methods.",
    "408": "The body came too slowly.",
    "413": "The body is too long.",
    "415": "The body is not application/json, or it is compressed.",
    "429": "All places are taken; Retry-After is the delay before a retry.",
    "500": "A fault of the server's; its id is in the log.",
    "503": "No replica can serve this at present.",
    "504": "The request's timeout has passed.",
}


_BODY_ERRORS = ("400", "404", "408", "413", "415", "429")


def openapi_document(model: str) -> bytes:
    """Return the document as JSON; requests may name this model, or the drafter's own one."""
    schemas = _schemas()
    for request in _REQUESTS:
        named: dict[str, Any] = _names(model)
        if not request.model_fields["model"].is_required():
            named = {"anyOf": [named, {"type": "null"}]}
        schemas[request.__name__]["properties"]["model"] = named
    document = {
        "openapi": "3.1.0",
        "info": {"title": "FlyServe", "version": VERSION, "description": "OpenAI-compatible, with verdicts."},
        "paths": _paths(model),
        "components": {"schemas": schemas},
    }
    return json.dumps(document).encode()


def _names(model: str) -> dict[str, Any]:
    return {"enum": [model, model + DRAFT_SUFFIX], "type": "string"}


def _schemas() -> dict[str, Any]:
    models: list[tuple[type[BaseModel], Literal["validation", "serialization"]]]
    models = [(request, "validation") for request in _REQUESTS]
    models += [(response, "serialization") for response in _RESPONSES]
    _, definitions = models_json_schema(models, ref_template=_REFERENCE)
    found: dict[str, Any] = definitions["$defs"]
    return found


def _paths(model: str) -> dict[str, Any]:
    name = {"name": "model", "in": "path", "required": True, "schema": _names(model)}
    return {
        "/v1/completions": {
            "post": _generate("Continue prompts", CompletionRequest, Completion, _chunks(Completion))
        },
        "/v1/chat/completions": {
            "post": _generate("Answer", ChatRequest, ChatCompletion, _chunks(ChatChunk))
        },
        "/v1/responses": {"post": _generate("Answer", ResponsesRequest, ResponseObject, _EVENT)},
        "/v1/models": {"get": _get("The models that are served", ModelList)},
        "/v1/models/{model}": {
            "parameters": [name],
            "get": _get("One of them", ModelObject, "404"),
        },
        "/tokenize": {"post": _post("Tokenize a text or a conversation", TokenizeRequest, Tokenized, "503")},
        "/detokenize": {"post": _post("Join tokens to a text", DetokenizeRequest, Detokenized)},
        "/tokenizer_info": {"get": _get("Special tokens and chat template", TokenizerInfo)},
        "/health": {"get": _get("Readiness", Health, "503")},
        "/version": {"get": _get("FlyServe's version", Version)},
        "/metrics": {"get": {"summary": "Metrics for Prometheus", "responses": {"200": _METRICS}}},
    }


def _chunks(chunk: type[BaseModel]) -> str:
    return f"{_STREAM} Each is a {chunk.__name__}."


def _generate(
    summary: str, request: type[BaseModel], response: type[BaseModel], stream: str
) -> dict[str, Any]:
    success = {
        "description": f"The whole response or, with `stream`, {stream}",
        "content": {**_json(response), "text/event-stream": {}},
    }
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": _json(request)},
        "responses": {"200": success, **_errors(*_ERRORS)},
    }


def _post(summary: str, request: type[BaseModel], response: type[BaseModel], *errors: str) -> dict[str, Any]:
    body = {"required": True, "content": _json(request)}
    return {**_get(summary, response, *_BODY_ERRORS, *errors), "requestBody": body}


def _get(summary: str, response: type[BaseModel], *errors: str) -> dict[str, Any]:
    success = {"200": {"description": "The requested object", "content": _json(response)}}
    return {"summary": summary, "responses": {**success, **_errors(*errors)}}


def _errors(*statuses: str) -> Mapping[str, Any]:
    return {status: {"description": _ERRORS[status], "content": _json(ErrorResponse)} for status in statuses}


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(model=model.__name__)}}}
