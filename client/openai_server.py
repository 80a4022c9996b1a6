"""OpenAI's HTTP API over a running server: `python -m client.openai_server`."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException as RoutingError
from starlette.types import Receive, Scope, Send

from client.openai_answers import Answer
from client.openai_door import Door
from client.openai_errors import ApiError, from_server, from_validation
from client.openai_metrics import Metrics
from client.openai_schema import ChatRequest, Transcripts, contract_request
from client.options import LineParser, address, number
from client.streaming import Event, OmniClient, OmniClientError

T = TypeVar("T")
DESCRIBE_S = 10.0
LEFT = 499  # nobody reads it


@dataclass(frozen=True)
class Settings:
    """`url`: the gRPC address of the server. `keys`: who holds one may ask; none: everybody."""

    url: str = "127.0.0.1:8001"
    names: tuple[str, ...] = ("qwen3_omni",)
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    max_bytes: int = 64 << 20
    root_path: str = ""


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


def make_app(settings: Settings) -> FastAPI:
    """The application; it connects to the server when it is started."""
    metrics, transcripts, started = Metrics(), Transcripts(), int(time.time())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with OmniClient(settings.url) as client:
            app.state.client = client
            yield

    # The pages that FastAPI has for the schema load scripts from elsewhere.
    app = FastAPI(title="Qwen3-Omni", lifespan=lifespan, docs_url=None, redoc_url=None, root_path=settings.root_path)
    app.add_middleware(Door, keys=settings.keys, max_bytes=settings.max_bytes, metrics=metrics)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    _add_error_handlers(app)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        if body.model not in settings.names:
            raise unknown_model(body.model)
        request_id = f"chatcmpl-{secrets.token_hex(12)}"
        contract, names = contract_request(body, request_id, transcripts)
        answer = Answer(body, request_id, body.model, names, transcripts, metrics)
        events = request.app.state.client.stream(contract)
        headers = {"x-request-id": request_id}
        try:
            if not body.stream:
                return JSONResponse(await while_there(request, answer.whole(events)), headers=headers)
            # An error that comes before anything else still has a status of its own.
            first = await while_there(request, _first(events))
        except OmniClientError as error:
            metrics.answers.labels(error.code).inc()
            raise from_server(error, names) from error
        except ClientLeft:
            metrics.answers.labels("left").inc()
            return Response(status_code=LEFT)
        headers |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return _Stream(answer, first, events, headers)

    @app.get("/v1/models")
    async def models() -> dict:
        return {"object": "list", "data": [model(name) for name in settings.names]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict:
        if name not in settings.names:
            raise unknown_model(name)
        return model(name)

    def model(name: str) -> dict:
        return {"id": name, "object": "model", "created": started, "owned_by": "qwen"}

    def unknown_model(name: str) -> ApiError:
        known = ", ".join(settings.names)
        return ApiError(404, "model_not_found", f"model: there is no {name[:100]!r} here, but {known}", "model")

    @app.get("/v1/audio/voices")
    async def voices(request: Request) -> dict:
        facts = await request.app.state.client.ask({"describe": True}, deadline_s=DESCRIBE_S)
        return {"voices": facts.summary["voices"], "uploaded_voices": []}

    @app.get("/health")
    async def health(request: Request) -> Response:
        await request.app.state.client.check_ready()
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def own_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(OmniClientError)
    async def server_error(request: Request, error: OmniClientError) -> Response:
        if request.url.path.endswith("/health"):  # whatever it is, it is not ready
            return ApiError(503, error.code, "The server is not ready.").response()
        return from_server(error, {}).response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return from_validation(error.errors()).response()

    @app.exception_handler(RoutingError)
    async def other(request: Request, error: HTTPException) -> Response:
        # A body that cannot even be read has no field.
        param = "body" if error.status_code == 400 else None
        return ApiError(error.status_code, "invalid_request", str(error.detail), param).response()

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> Response:
        return ApiError(500, "internal", "The server failed on this request.").response()


async def _first(events: AsyncGenerator[Event, None]) -> Event:
    return await anext(events)


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises ClientLeft, and what `work` does."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return task.result()
    finally:
        task.cancel()
        leaving.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


class _Stream(StreamingResponse):
    """Closes its events, and so cancels the request, however it ends. Starlette notices a client that leaves."""

    def __init__(self, answer: Answer, first: Event, events: AsyncGenerator[Event, None], headers: dict) -> None:
        async def all_events() -> AsyncIterator[Event]:
            yield first
            async for event in events:
                yield event

        self._answer, self._events = answer, events
        self._lines = answer.lines(all_events())
        super().__init__(self._lines, headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._lines.aclose()
            await self._events.aclose()
            if not self._answer.ended:
                self._answer.metrics.answers.labels("left").inc()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, with `keys`: the API keys of the file."""
    said = "OpenAI's HTTP API over a running server."
    parser = LineParser(prog="python -m client.openai_server", description=said, allow_abbrev=False)
    add = parser.add_argument
    said = "gRPC address of the server (default: 127.0.0.1:8001)"
    add("--url", type=address, default="127.0.0.1:8001", metavar="HOST:PORT", help=said)
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=number(int), default=8091, metavar="N", help="(default: 8091)")
    add("--api-key-file", type=Path, metavar="FILE", help="one key a line; without it no key is needed")
    add("--allowed-origins", nargs="+", default=[], metavar="ORIGIN", help="whose pages may ask (CORS); * for all")
    said = "most bytes of a request's body (default: 64 MiB)"
    add("--http-max-input-size", type=number(int), default=64 << 20, metavar="BYTES", help=said)
    said = "what clients call the model; several are possible (default: qwen3_omni)"
    add("--served-model-name", nargs="+", default=["qwen3_omni"], metavar="NAME", help=said)
    add("--root-path", default="", metavar="PATH", help="the path under which a proxy shows this server")
    add("--ssl-certfile", type=Path, metavar="FILE", help="certificates, for https")
    add("--ssl-keyfile", type=Path, metavar="FILE", help="their key")
    args = parser.parse_args(argv)
    if args.port > 65535:
        parser.error(f"argument --port: must be at most 65535, got {args.port}")
    if args.ssl_keyfile is not None and args.ssl_certfile is None:
        parser.error("argument --ssl-keyfile: needs --ssl-certfile")
    args.keys = []
    for name in ("api_key_file", "ssl_certfile", "ssl_keyfile"):
        try:
            text = "" if getattr(args, name) is None else getattr(args, name).read_text()
        except (OSError, ValueError) as error:
            parser.error(f"argument --{name.replace('_', '-')}: cannot be read: {error}")
        if name == "api_key_file":
            args.keys = text.split()
    if args.api_key_file is not None and not args.keys:
        parser.error("argument --api-key-file: holds no key")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM, and answers under way to their end. The exit status."""
    args = parse(argv)
    names, root = tuple(args.served_model_name), args.root_path.rstrip("/")
    settings = Settings(args.url, names, tuple(args.keys), tuple(args.allowed_origins), args.http_max_input_size, root)
    uvicorn.run(
        make_app(settings),
        host=args.host.strip("[]"),
        port=args.port,
        loop="asyncio",
        access_log=False,
        log_level="warning",
        ssl_certfile=args.ssl_certfile,
        ssl_keyfile=args.ssl_keyfile,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
