"""The Thinker's engine: vLLM in this process, a thread that steps it and a thread that delivers its results.

vLLM's LLMEngine is used with its core in this process rather than AsyncLLM, whose core is a second process. Measured on
two cores with a tiny checkpoint, from interpreter start to ready: 19 s against 50 s, because nothing is imported twice.
A step's results reach us by a function call instead of a socket, and hidden rows need no transport of their own. Async
scheduling works with the core in this process (on CUDA; vLLM switches it off on the CPU), so the host work of a step
overlaps the device's. Tensor and pipeline parallelism still start vLLM's own workers, which end with this process.
"""

from __future__ import annotations

import itertools
import logging
import queue
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from python_backends.config.errors import InvalidRequest, OmniError, Overloaded, StageFailed
from python_backends.config.media_inputs import MediaTensors
from python_backends.thinker.delivery import Delivery, Failure, Prompt, Step, Stream
from python_backends.thinker.detokenizer import Detokenizer
from python_backends.thinker.media.loader import check_refs
from python_backends.thinker.media.options import MediaOptions
from python_backends.thinker.media.refs import MEDIA_KINDS
from python_backends.thinker.messages import PromptRules, parse_messages
from python_backends.thinker.options import ThinkerOptions
from python_backends.thinker.preparation import Preparation
from python_backends.thinker.request import ThinkerRequest, ThinkerSink
from python_backends.thinker.rows import RowCollector
from python_backends.thinker.vllm_core import VllmCore, preload
from python_backends.thinker.vllm_patches.media_support import usable_media

__all__ = [
    "MediaOptions",
    "MediaTensors",
    "ThinkerEngine",
    "ThinkerOptions",
    "ThinkerRequest",
    "ThinkerSink",
    "preload",
]

log = logging.getLogger(__name__)


class ThinkerEngine:
    """Serves many streams at once. `add`, `abort`, `stats` and `close` may be called from any thread.

    The constructor returns when vLLM is ready; it raises ValueError for wrong options and what vLLM raises otherwise.
    """

    def __init__(self, options: ThinkerOptions, sink: ThinkerSink) -> None:
        self._options = options
        self._streams: dict[str, Stream] = {}
        self._lock = threading.Lock()
        self._error: OmniError | None = None
        self._numbers = itertools.count()
        self._rows = RowCollector()
        self._preparation: Preparation | None = None
        self._commands: queue.SimpleQueue = queue.SimpleQueue()
        started: Future[VllmCore] = Future()
        # One thread touches the device, from loading on: CUDA's current device belongs to a thread.
        self._thread = threading.Thread(target=self._run, args=(started,), name="thinker-engine", daemon=True)
        self._thread.start()
        self._core = started.result()
        self._delivery = Delivery(sink, self._core.stop_ids, self._forget)
        media = self._options.media
        assert not isinstance(media, dict)  # the options have read it
        self._rules = PromptRules(self._core.prompts.control_tokens, self._core.max_model_len, media)
        if media is not None:
            self._preparation = Preparation(self._core, media, self._rows, self._delivery.post, self._commands.put)

    @property
    def error(self) -> OmniError | None:
        """Why the engine is dead, None while it lives."""
        return self._error

    @property
    def max_model_len(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self._core.max_model_len

    def describe(self) -> dict:
        """Limits and versions for clients; `media`: most of each kind in a request, None for text only."""
        media = self._options.media
        assert not isinstance(media, dict)  # the options have read it
        return {
            "context_tokens": self.max_model_len,
            "media": None if media is None else {kind: media.limit(kind) for kind in MEDIA_KINDS},
            "chat_template_kwargs": sorted(self._core.prompts.variables),
            "versions": {name: str(sys.modules[name].__version__) for name in ("vllm", "torch", "transformers")},
        }

    def run_until(self, stop: threading.Event) -> None:
        """Block until `stop` is set. Raises StageFailed when the engine dies first."""
        while not stop.wait(0.5):
            if self._error is not None:
                raise self._error

    def add(self, request: ThinkerRequest) -> None:
        """Check and accept `request`.

        Raises InvalidRequest that names the field, Overloaded when `max_streams` are open, StageFailed when the engine
        is dead. Whatever fails later goes to the sink.
        """
        if self._error is not None:
            raise self._error
        core = self._core
        if request.speak and not core.speaks:
            raise InvalidRequest("modalities", "this checkpoint answers in text only")
        conversation = parse_messages(request.messages, self._rules)
        core.check_limit(request.sampling.max_tokens)
        params = core.sampling_params(request.sampling, request.seed)
        text = core.prompts.text(conversation, request.template)
        rows = request.speech_rows if request.speak else None
        stream = Stream(f"{request.stream_id}/{next(self._numbers)}", request, Detokenizer(core.token_bytes))
        if conversation.media:
            if request.speak and not core.captures:
                raise InvalidRequest(conversation.media[0].field, "this server takes media for text answers only")
            assert self._preparation is not None  # messages that name media were refused without it
            self._preparation.check(conversation, request.media)
            ids = core.prompts.ids(text)
            core.check_length(ids, rows)
            core.check_placeholders(ids, conversation.media)
            self._register(stream)
            self._preparation.submit(stream, conversation, ids, params)
            return
        check_refs([], request.media, MediaOptions())
        ids = core.prompts.ids(text)
        core.check_length(ids, rows)
        core.check_placeholders(ids, [])
        stream.prompt_ids = np.asarray(ids, dtype=np.int32)
        self._register(stream)
        self._delivery.post([Prompt(stream)])
        self._commands.put((stream, core.text_input(ids), params))

    def abort(self, stream_id: str) -> None:
        """Free the stream. No sink call for it starts after this returns; one under way is waited for."""
        with self._lock:
            stream = self._streams.pop(stream_id, None)
            if stream is None:
                return
            # Inside the lock: a later stream of the same name must be added after this one is gone.
            self._commands.put((stream, None, None))
        self._rows.forget(stream.key)
        with stream.lock:
            stream.ended = True

    def stats(self) -> dict[str, int]:
        """`streams`: accepted and not ended. `running`: those of them inside vLLM. `preparing`: those whose media are
        fetched and decoded. `awaiting_rows`: those whose hidden rows are not all there.
        """
        with self._lock:
            streams = len(self._streams)
        preparing = len(self._preparation) if self._preparation is not None else 0
        running, awaiting = self._core.running, len(self._rows)
        return {"streams": streams, "running": running, "preparing": preparing, "awaiting_rows": awaiting}

    def close(self) -> None:
        """End vLLM and all threads; streams still open fail."""
        self._die(StageFailed("the Thinker was closed"))
        if self._preparation is not None:
            self._preparation.close()
        self._commands.put(None)
        self._thread.join()
        self._delivery.close()

    def _register(self, stream: Stream) -> None:
        with self._lock:
            if stream.stream_id in self._streams:
                raise InvalidRequest("stream_id", f"{stream.stream_id!r} is already open")
            if len(self._streams) >= self._options.max_streams:
                raise Overloaded(f"{len(self._streams)} requests are open, the limit")
            self._streams[stream.stream_id] = stream

    def _forget(self, stream: Stream) -> None:
        with self._lock:
            self._streams.pop(stream.stream_id, None)
        self._rows.forget(stream.key)
        # For a stream that failed on our side while vLLM works on it.
        self._commands.put((stream, None, None))

    def _die(self, error: OmniError) -> None:
        with self._lock:
            self._error = self._error or error
            streams = list(self._streams.values())
        if streams:
            self._delivery.post([Failure(stream, error) for stream in streams])

    def _run(self, started: Future[VllmCore]) -> None:
        try:
            preload(self._options)
            media = self._options.media
            assert not isinstance(media, dict)  # the options have read it
            self._options = replace(self._options, media=usable_media(media))
            core = VllmCore(self._options, self._rows.receive)
            if self._options.device == "cuda":
                core.warm_up()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(core)
        try:
            self._loop(core)
        except Exception as error:
            log.exception("vLLM failed")
            self._die(StageFailed(f"the Thinker's engine failed: {error}"))
        finally:
            core.close()

    def _loop(self, core: VllmCore) -> None:
        while True:
            while not core.running or not self._commands.empty():
                command = self._commands.get()
                if command is None:
                    return
                self._obey(core, *command)
            events: list[Any] = []
            for stream_id, ids, reason, logprobs in core.step():
                stream = core.streams.get(stream_id)
                if stream is None:
                    continue
                if reason is not None:
                    del core.streams[stream_id]
                if reason in (None, "stop", "length"):
                    events.append(Step(stream, ids, reason, logprobs))
                elif (shaped := stream.request.sampling.shaped_by) is not None:
                    # vLLM picks among no ids at all when the grammar allows none, and then refuses what it picked.
                    where = f"sampling.thinker.{shaped}"
                    events.append(
                        Failure(stream, InvalidRequest(where, "leads to where no text may follow, nor an end"))
                    )
                else:
                    events.append(Failure(stream, StageFailed(f"vLLM ended the request: {reason}")))
            if events:
                self._delivery.post(events)

    def _obey(self, core: VllmCore, stream: Stream, engine_input: Any, params: Any) -> None:
        if engine_input is None:
            core.abort(stream)
        elif not stream.ended:
            try:
                core.add(stream, engine_input, params)
            except ValueError as error:
                self._delivery.post([Failure(stream, InvalidRequest("messages", str(error)))])
