"""What every HTTP request passes first: the API key, the size limit, and the count."""

from __future__ import annotations

import hmac
import time
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client.openai_errors import ApiError
from client.openai_metrics import Metrics

ROUTES = ("/v1/chat/completions", "/v1/models", "/v1/audio/voices", "/health", "/metrics", "/openapi.json")


class Door:
    """ASGI middleware. Keys are asked for under /v1 only: probes and Prometheus have none."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], max_bytes: int, metrics: Metrics) -> None:
        self._app, self._max_bytes, self._metrics = app, max_bytes, metrics
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, headers = scope["path"].removeprefix(scope.get("root_path", "")), Headers(scope=scope)
        started, status, read = time.monotonic(), 500, 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_bytes:
                raise self._too_large()
            return message

        with self._metrics.in_flight.track_inprogress():
            try:
                refusal = self._refusal(path, headers)
                await (refusal.response() if refusal is not None else self._app)(scope, limited, counted)
            finally:
                route = path if path in ROUTES else "other"
                self._metrics.requests.labels(route, status).inc()
                self._metrics.duration.labels(route).observe(time.monotonic() - started)

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        if self._keys and path.startswith("/v1/") and not self._holds_key(headers.get("authorization", "")):
            reason = "A valid API key is needed, as Authorization: Bearer KEY."
            return ApiError(401, "invalid_api_key", reason)
        length = headers.get("content-length", "")
        return self._too_large() if length.isdecimal() and int(length) > self._max_bytes else None

    def _holds_key(self, authorization: str) -> bool:
        scheme, _, key = authorization.partition(" ")
        given = key.strip().encode("latin-1", "replace")
        # All of them, so that the time says nothing.
        found = [hmac.compare_digest(given, known) for known in self._keys]
        return scheme.lower() == "bearer" and any(found)

    def _too_large(self) -> ApiError:
        return ApiError(413, "too_large", f"body: is larger than {self._max_bytes} bytes", "body")
