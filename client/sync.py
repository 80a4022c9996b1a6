"""The streaming client without asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, TypeVar

from client.media import RawMedia
from client.streaming import Answer, Event, Failed, OmniClient

T = TypeVar("T")
CLOSE_S = 10.0


class SyncOmniClient:
    """OmniClient for threads: one event loop of its own, on a thread of its own, serves all that use it.

    Use as a context manager, or call `close`.
    """

    def __init__(self, url: str = "127.0.0.1:8001", model: str = "qwen3_omni") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="omni client", daemon=True)
        self._thread.start()

        async def connect() -> OmniClient:
            return OmniClient(url, model)  # on the loop that it belongs to

        self._client = self._wait(connect())

    def __enter__(self) -> SyncOmniClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what still runs and end the thread. The second time there is nothing to do."""
        if self._loop.is_closed():
            return
        try:
            self._wait(self._end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_S)
            self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.__aexit__()
        await asyncio.get_running_loop().shutdown_asyncgens()

    def wait_ready(self, timeout_s: float) -> None:
        """Return when the model can serve. Raises TimeoutError."""
        self._wait(self._client.wait_ready(timeout_s))

    def ask(self, request: dict | str, media: RawMedia | None = None, deadline_s: float | None = None) -> Answer:
        """The whole answer. Raises OmniClientError."""
        return self._wait(self._client.ask(request, media, deadline_s))

    def stream(
        self, request: dict | str, media: RawMedia | None = None, deadline_s: float | None = None
    ) -> Generator[Event, None, None]:
        """As OmniClient.stream: `for event in client.stream(request)`. Leaving the loop early cancels the request."""
        return self._iterate(self._client.stream(request, media, deadline_s))

    def events(
        self, request: dict | str, media: RawMedia | None = None, deadline_s: float | None = None
    ) -> Generator[Event | Failed, None, None]:
        """As OmniClient.events: a failure is the last event."""
        return self._iterate(self._client.events(request, media, deadline_s))

    def _iterate(self, events: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        async def following() -> tuple[T] | None:
            try:
                return (await anext(events),)
            except StopAsyncIteration:
                return None

        try:
            while (item := self._wait(following())) is not None:
                yield item[0]
        finally:
            if not self._loop.is_closed():
                self._wait(events.aclose())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C of the thread that waits
            raise
