"""Media between `add` and vLLM: a pool of threads that fetch, decode and run the checkpoint's processor."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from python_backends.config.errors import InvalidRequest, OmniError, Overloaded, StageFailed
from python_backends.config.media_inputs import MediaTensors
from python_backends.thinker.delivery import Failure, Prompt, Stream
from python_backends.thinker.media.loader import check_refs, load
from python_backends.thinker.media.options import MediaOptions
from python_backends.thinker.messages import Conversation
from python_backends.thinker.multimodal import MediaPrompt
from python_backends.thinker.rows import RowCollector
from python_backends.thinker.vllm_core import VllmCore

log = logging.getLogger(__name__)


class Preparation:
    """`post` takes events for the sink, `command` what the engine's thread shall add."""

    def __init__(
        self,
        core: VllmCore,
        options: MediaOptions,
        rows: RowCollector,
        post: Callable[[list[Any]], None],
        command: Callable[[tuple[Stream, Any, Any]], None],
    ) -> None:
        self._core = core
        self._options = options
        self._rows = rows
        self._post = post
        self._command = command
        self._lock = threading.Lock()
        self._count = 0
        self._pool = ThreadPoolExecutor(options.workers, thread_name_prefix="thinker-media")
        # All threads now: an idle server's count of threads does not depend on what it has served.
        ready = threading.Barrier(options.workers + 1)
        for _ in range(options.workers):
            self._pool.submit(ready.wait)
        ready.wait()

    def __len__(self) -> int:
        return self._count

    def check(self, conversation: Conversation, tensors: MediaTensors) -> None:
        """Raises InvalidRequest or Overloaded; reads nothing."""
        check_refs(conversation.media, tensors, self._options)
        if self._count >= self._options.max_waiting:
            raise Overloaded(f"{self._count} requests with media are being prepared, the limit")

    def submit(self, stream: Stream, conversation: Conversation, ids: list[int], params: Any) -> None:
        with self._lock:
            self._count += 1
        self._pool.submit(self._run, stream, conversation, ids, params)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, stream: Stream, conversation: Conversation, ids: list[int], params: Any) -> None:
        try:
            if not stream.ended:
                self._prepare(stream, conversation, ids, params)
        except OmniError as error:
            self._post([Failure(stream, error)])
        except MemoryError:
            self._post([Failure(stream, InvalidRequest("messages", "need more memory than there is"))])
        except Exception:
            log.exception("stream %s: media could not be prepared", stream.stream_id)
            self._post([Failure(stream, StageFailed("media could not be prepared: the server's log says why"))])
        finally:
            with self._lock:
                self._count -= 1

    def _prepare(self, stream: Stream, conversation: Conversation, ids: list[int], params: Any) -> None:
        media = load(conversation.media, stream.request.media, self._options, self._core.positions_per_second)
        if stream.ended:
            return
        try:
            prompt = self._core.media_prompt(ids, media, stream.key)
        except ValueError as error:
            raise InvalidRequest("messages", str(error)) from None
        request = stream.request
        self._core.check_length(prompt.ids, request.speech_rows if request.speak else None)
        stream.prompt_ids = prompt.ids
        stream.notes = tuple(media.notes)
        if stream.request.speak:
            self._core.capture(params, stream.key)
            self._rows.expect(stream.key, prompt.positions, partial(self._rows_done, stream, prompt))
        else:
            self._post([Prompt(stream)])
        self._command((stream, prompt.engine_input, params))

    def _rows_done(self, stream: Stream, prompt: MediaPrompt, rows: np.ndarray | None) -> None:
        if rows is None:
            self._post([Failure(stream, StageFailed("hidden rows of the prompt were lost"))])
        else:
            self._post([Prompt(stream, prompt.with_rows(rows))])
