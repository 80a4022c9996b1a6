"""The thread that turns the model's ids into text and hands results to the sink, behind the step loop."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from python_backends.config.errors import OmniError, StageFailed
from python_backends.config.multimodal import MultimodalPrompt
from python_backends.config.stage import Finish
from python_backends.thinker.detokenizer import Detokenizer
from python_backends.thinker.request import ThinkerRequest, ThinkerSink

log = logging.getLogger(__name__)


@dataclass
class Stream:
    """One request from `add` to its end. `lock` is held during every sink call; `ended` allows no further one.

    `key`: unlike the stream's name never used again. `notes`: for the client, see Finish.
    """

    key: str
    request: ThinkerRequest
    detokenizer: Detokenizer
    prompt_ids: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    completion_tokens: int = 0
    prompt_sent: bool = False
    ended: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)
    held: list[Step] = field(default_factory=list)

    @property
    def stream_id(self) -> str:
        return self.request.stream_id


@dataclass(frozen=True)
class Prompt:
    """The prompt is known; with media, its hidden rows too."""

    stream: Stream
    multimodal: MultimodalPrompt | None = None


@dataclass(frozen=True)
class Step:
    """Ids of one model step, with the end-of-text id if there is one. `finish_reason`: "stop", "length" or None."""

    stream: Stream
    ids: list[int]
    finish_reason: str | None


@dataclass(frozen=True)
class Failure:
    stream: Stream
    error: OmniError


class Delivery:
    """Calls `sink` from a thread of its own. `ended(stream)` is called once for each stream that ends here."""

    def __init__(self, sink: ThinkerSink, stop_ids: frozenset[int], ended: Callable[[Stream], None]) -> None:
        self._sink = sink
        self._stop_ids = stop_ids
        self._ended = ended
        self._events: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="thinker-delivery", daemon=True)
        self._thread.start()

    def post(self, events: list[Prompt | Step | Failure]) -> None:
        self._events.put(events)

    def close(self) -> None:
        """Deliver what was posted and end the thread."""
        self._events.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (events := self._events.get()) is not None:
            for event in events:
                with event.stream.lock:
                    if not event.stream.ended:
                        self._deliver_guarded(event)

    def _deliver_guarded(self, event: Prompt | Step | Failure) -> None:
        try:
            self._deliver(event)
        except Exception as error:
            log.exception("stream %s: the sink failed", event.stream.stream_id)
            self._end(event.stream)
            self._sink.failed(event.stream.stream_id, StageFailed(f"the Thinker's results could not be sent: {error}"))

    def _deliver(self, event: Prompt | Step | Failure) -> None:
        stream = event.stream
        if isinstance(event, Failure):
            self._end(stream)
            self._sink.failed(stream.stream_id, event.error)
        elif isinstance(event, Prompt):
            stream.prompt_sent = True
            self._sink.prompt(stream.stream_id, stream.prompt_ids, event.multimodal)
            held, stream.held = stream.held, []
            for step in held:
                self._output(step)
        elif not stream.prompt_sent:
            # The hidden rows of the prompt are still on their way from the device.
            stream.held.append(event)
        else:
            self._output(event)

    def _output(self, step: Step) -> None:
        stream, ids = step.stream, step.ids
        if step.finish_reason == "stop" and ids and ids[-1] in self._stop_ids:
            ids = ids[:-1]
        stream.completion_tokens += len(ids)
        text = stream.detokenizer.feed(ids, last=step.finish_reason is not None)
        finish = None
        if step.finish_reason is not None:
            usage = {"prompt_tokens": len(stream.prompt_ids), "completion_tokens": stream.completion_tokens}
            finish = Finish(step.finish_reason, usage, stream.notes)
            self._end(stream)
        elif not ids:
            return
        self._sink.output(stream.stream_id, np.asarray(ids, dtype=np.int32), text, finish)

    def _end(self, stream: Stream) -> None:
        stream.ended = True
        self._ended(stream)
