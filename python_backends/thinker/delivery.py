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
from python_backends.thinker.detokenizer import Detokenizer, entries_of
from python_backends.thinker.request import ThinkerRequest, ThinkerSink
from python_backends.thinker.stop_strings import Output, StopStrings

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

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self._stops = StopStrings(sampling, self.detokenizer) if sampling.stop else None
        self.stop_ids = frozenset(sampling.stop_token_ids or ())

    def feed(self, ids: list[int], entries: list, last: bool) -> Output:
        """What may be passed on once `ids` have come; `last`: none follow."""
        if self._stops is not None:
            return self._stops.feed(ids, entries, last)
        return Output(ids, self.detokenizer.feed(ids, last), entries)

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
    """Ids of one model step, with the end-of-text id if there is one. `finish_reason`: "stop", "length" or None.

    `logprobs`: vLLM's, for each id, where the request wants them.
    """

    stream: Stream
    ids: list[int]
    finish_reason: str | None
    logprobs: list | None = None


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
            assert stream.prompt_ids is not None  # set before its event is posted
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
        stream, ids, reason = step.stream, step.ids, step.finish_reason
        if reason == "stop" and ids and (ids[-1] in self._stop_ids or ids[-1] in stream.stop_ids):
            ids = ids[:-1]
        entries = entries_of(step.logprobs, ids, stream.detokenizer.token_bytes) if step.logprobs else []
        out = stream.feed(ids, entries, last=reason is not None)
        if out.stopped:
            # vLLM works on it until the engine is told, which `ended` does.
            reason = "stop"
        stream.completion_tokens += len(out.ids)
        finish = None
        if reason is not None:
            assert stream.prompt_ids is not None
            usage = {"prompt_tokens": len(stream.prompt_ids), "completion_tokens": stream.completion_tokens}
            finish = Finish(reason, usage, stream.notes)
            self._end(stream)
        elif not out.ids and not out.text:
            return
        more = {"logprobs": out.entries} if out.entries else {}
        self._sink.output(stream.stream_id, np.asarray(out.ids, dtype=np.int32), out.text, finish, **more)

    def _end(self, stream: Stream) -> None:
        stream.ended = True
        self._ended(stream)
