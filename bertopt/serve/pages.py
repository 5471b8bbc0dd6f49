"""What is read with GET: health, readiness, metrics, and the OpenAPI document with a page that shows it without a network."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

import bertopt

if TYPE_CHECKING:
    from bertopt.serve.app import Application


def routes(app: Application) -> list[Any]:
    """Starlette's routes."""
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

    service = app.service

    def health(request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    def ready(request: Request) -> Response:
        state = "draining" if service.draining else "ready" if service.ready else "starting"
        about = {
            "status": state,
            "engines_ready": service.ready,
            "engines": len(service.dispatchers),
            "waiting": service.waiting,
        }
        return JSONResponse(about, 200 if state == "ready" else 503)

    def metrics(request: Request) -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=1.0.0")

    document = openapi(app)

    def schema(request: Request) -> Response:
        return JSONResponse(document)

    def docs(request: Request) -> Response:
        return HTMLResponse(page(document))

    pages = {"/healthz": health, "/readyz": ready, "/metrics": metrics, "/openapi.json": schema, "/docs": docs}
    return [Route(path, _plain(endpoint), methods=["GET"]) for path, endpoint in pages.items()]


def _plain(endpoint: Any) -> Any:
    """On the event loop: a thread for each would wait behind whatever else uses threads, and health checks must not."""

    async def run(request: Any) -> Any:
        return endpoint(request)

    return run


def openapi(app: Application) -> dict[str, Any]:
    """The OpenAPI 3.1 document of this bundle's server."""
    m = app.bundle.manifest
    text = {"type": "string"}
    request = {
        "type": "object",
        "additionalProperties": False,
        "description": "One text, or many. A list is always many texts; a pair is text with text_pair.",
        "properties": {
            "text": text,
            "text_pair": {"type": ["string", "null"]},
            "texts": {"type": "array", "items": text, "minItems": 1},
            "text_pairs": {"type": "array", "items": {"type": ["string", "null"]}},
            "truncate": {
                "type": "boolean",
                "default": True,
                "description": f"Whether a text of more than {m.max_length} tokens is cut, which its answer says, or refused.",
            },
            "timeout_ms": {"type": "number", "exclusiveMinimum": 0, "default": app.timeout_s * 1e3},
        },
    }
    probability = {"type": "number", "minimum": 0, "maximum": 1}
    by_task: dict[str, dict[str, Any]] = {
        "single_label": {"label": {"enum": m.labels}, "score": probability},
        "multi_label": {"labels": {"type": "array", "items": {"enum": m.labels}}},
        "regression": {"value": {"type": ["number", "array"]}},
    }
    fields = by_task.get(m.task, {})
    if m.labels:
        fields["scores"] = {"type": "object", "properties": dict.fromkeys(m.labels, probability)}
    about = {"tokens": {"type": "integer"}, "truncated": {"type": "boolean"}}
    rows = {"type": "array", "items": {"type": "object", "properties": fields | about}}
    answer: dict[str, Any] = {"results": rows}
    if m.task == "embedding":
        vector = {"type": "array", "items": {"type": "number"}, "minItems": m.outputs, "maxItems": m.outputs}
        answer = {"embeddings": {"type": "array", "items": vector}, "texts": rows}
    error = {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "status": {"type": "integer"},
                    "reason": text,
                    "message": text,
                    "positions": {"type": "array", "items": {"type": "integer"}},
                },
            }
        },
    }
    said = {
        400: "The body is no JSON.",
        413: "The body, or the number of texts, is too large.",
        422: "A field is wrong, or a text is too long and truncate is false.",
        429: "The queue is full; Retry-After says when to come back.",
        500: "The model fails on a text; positions says on which.",
        503: "Starting, draining, or the back end is being started again.",
        504: "The deadline passed.",
    }
    path = "/embed" if m.task == "embedding" else "/predict"
    responses = {
        "200": {"description": "In the order of the texts.", "content": _json({"type": "object", "properties": answer})}
    }
    responses |= {str(status): {"description": text, "content": _json(error)} for status, text in said.items()}
    get = {
        "/healthz": "200 while the process lives.",
        "/readyz": "200 while texts are answered, else 503.",
        "/metrics": "Counters for Prometheus.",
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{m.name}, {m.precision}", "version": bertopt.__version__, "description": f"Task: {m.task}."},
        "paths": {
            path: {"post": {"summary": "Answer texts.", "requestBody": {"content": _json(request)}, "responses": responses}},
            **{p: {"get": {"summary": s, "responses": {"200": {"description": s}}}} for p, s in get.items()},
        },
    }


def page(document: dict[str, Any]) -> str:
    """The document for people, in one page."""
    parts = [f"<h1>{html.escape(document['info']['title'])}</h1><p>{html.escape(document['info']['description'])}</p>"]
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            parts.append(f"<h2><code>{method.upper()} {path}</code></h2><p>{html.escape(about['summary'])}</p><ul>")
            parts += [f"<li>{status}: {html.escape(r['description'])}</li>" for status, r in about["responses"].items()]
            parts.append("</ul>")
    source = html.escape(json.dumps(document, indent=1, ensure_ascii=False))
    parts.append(f"<h2><a href='openapi.json'>openapi.json</a></h2><pre>{source}</pre>")
    return f"<!doctype html><meta charset=utf-8><title>bertopt serve</title><body style='font:16px sans-serif'>{''.join(parts)}"


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
