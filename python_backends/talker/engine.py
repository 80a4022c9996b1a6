"""The Talker engine: requests and text ids in, chunks of codec frames out."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from python_backends.config.errors import InvalidRequest, OmniError, Overloaded, ProtocolError, StageFailed
from python_backends.engines_common.delivery import Delivery, InlineDelivery, ThreadDelivery
from python_backends.engines_common.transfer import CodeTransfer, HostTransfer, PinnedTransfer, can_pin
from python_backends.talker.model.slots import sampling_columns
from python_backends.talker.options import TalkerOptions
from python_backends.talker.output import ChunkBuilder, StepOutput
from python_backends.talker.prompt import build_prompt
from python_backends.talker.request import TalkerRequest, TalkerSink, TextChunk
from python_backends.talker.runner import SlotStart, TalkerRunner
from python_backends.talker.scheduler import Scheduler, widest_top_k
from python_backends.talker.stream import TalkerStream

SEED_BITS = 64
DRAWN_SEED_BITS = 32
log = logging.getLogger(__name__)


def why_synchronous(options: TalkerOptions, can_copy_behind: bool) -> str | None:
    """Why codes are waited for on the engine thread; None where they are copied and delivered behind it.

    `can_copy_behind`: the codes can be copied while the next step runs, into pinned memory.
    """
    for name in ("async_output", "async_chunk", "async_scheduling"):
        if not getattr(options, name):
            return f"{name} is off"
    return None if can_copy_behind else f"{options.device} has no asynchronous copies into pinned memory"


class TalkerEngine:
    """Any thread may call `add`, `feed`, `abort`, `stats` and `wait_for_work`; one thread calls `step`.

    `checkpoint`: a Hugging Face directory (or a config JSON with `load_format` "dummy"). `transfer`: another way to
    bring codes to the host; it counts as able to run asynchronously. `synchronous_because`: see `why_synchronous`.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        options: TalkerOptions,
        sink: TalkerSink,
        transfer: CodeTransfer | None = None,
    ) -> None:
        self._options = options
        self._runner = TalkerRunner(checkpoint, options)
        self._shape = self._runner.shape
        self._scheduler = Scheduler(options, self._shape.ids)
        self._work = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._streams: dict[str, TalkerStream] = {}
        self._woken = False
        self._closed = False
        self._counts = {"steps": 0, "frames_launched": 0, "prefill_rows": 0, "streams": 0, "aborted": 0}
        builder = ChunkBuilder(sink, self._shape.ids.codec_eos, self._shape.groups, lambda: len(self._streams))
        size = (options.max_steps_in_flight, options.max_num_seqs, self._shape.groups)
        self.synchronous_because = why_synchronous(options, transfer is not None or can_pin(self._runner.device))
        delivery: Delivery
        if self.synchronous_because is None:
            transfer = transfer or PinnedTransfer(*size, self._runner.device)
            delivery = ThreadDelivery("talker-builder")
        else:
            transfer = transfer or HostTransfer(*size)
            delivery = InlineDelivery()
            log.info("synchronous output: %s", self.synchronous_because)
        self._output = StepOutput(builder, transfer, options.max_steps_in_flight, delivery, self._wake)

    @property
    def max_model_len(self) -> int:
        """Rows of prompt and speech that one stream may use."""
        return self._runner.context

    def describe(self) -> dict:
        return {"voices": sorted(self._shape.speakers), "context_rows": self.max_model_len}

    def add(self, request: TalkerRequest) -> None:
        """Register a stream. Raises InvalidRequest for a bad speaker, seed or stream id, Overloaded when full."""
        speaker = self._shape.speakers.get(str(request.speaker).lower())
        if speaker is None:
            raise InvalidRequest("speaker", f"must be one of {', '.join(sorted(self._shape.speakers))}")
        seed = request.seed
        if seed is None:
            seed = secrets.randbits(DRAWN_SEED_BITS)
        elif isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << SEED_BITS:
            raise InvalidRequest("seed", f"must be an integer from 0 to 2**{SEED_BITS} - 1, got {seed!r}")
        stream = TalkerStream(request, seed, speaker)
        with self._work:
            if self._closed:
                raise StageFailed("the talker engine is closed")
            self._forget_closed()
            if request.stream_id in self._streams:
                raise InvalidRequest("stream_id", f"{request.stream_id} is open already")
            if len(self._streams) >= self._options.max_num_seqs + self._options.max_waiting:
                raise Overloaded(f"the talker holds {len(self._streams)} streams")
            self._streams[request.stream_id] = stream
            self._counts["streams"] += 1

    def feed(self, stream_id: str, chunk: TextChunk) -> None:
        """Bring text ids, and the prompt with the first chunk. Never blocks.

        A chunk for a stream that has ended is dropped. A bad chunk ends its stream with an error.
        """
        with self._work:
            stream = self._streams.get(stream_id)
        if stream is None or stream.ended:
            return
        try:
            act = self._accept(stream, chunk)
        except OmniError as error:
            self._post_end(stream, error)
        except (TypeError, ValueError, OverflowError) as error:
            self._post_end(stream, InvalidRequest("chunk", f"cannot be read: {error}"))
        else:
            self._post(act)

    def _post_end(self, stream: TalkerStream, error: OmniError) -> None:
        self._post(lambda: self._output.fail(stream, error))

    def _accept(self, stream: TalkerStream, chunk: TextChunk) -> Callable[[], None]:
        """Check a chunk and lay the prompt out, on the caller's thread; give what the engine thread has to do."""
        if stream.got_end:
            raise ProtocolError(f"stream {stream.stream_id}: text came after its end")
        if (chunk.prompt_ids is not None) == stream.got_prompt:
            raise ProtocolError(f"stream {stream.stream_id}: the prompt must come with the first chunk, and once")
        texts = [int(text) for text in chunk.ids]
        if any(not 0 <= text < self._shape.text_vocab for text in texts):
            raise InvalidRequest("ids", f"must be ids from 0 to {self._shape.text_vocab - 1}")
        prompt = None
        if chunk.prompt_ids is not None:
            prompt = build_prompt(chunk.prompt_ids, chunk.multimodal, stream.speaker_code, self._shape)
            if prompt.rows >= self.max_model_len:
                # The Thinker refuses it before, knowing this context: only a caller without one comes here.
                raise InvalidRequest(
                    "messages", f"make {prompt.rows} rows; at most {self.max_model_len - 1} for spoken answers"
                )
            texts = [*prompt.first_text.tolist(), *texts]
            stream.got_prompt = True
        stream.got_end = chunk.finished

        def act() -> None:
            stream.texts.extend(texts)
            stream.text_finished = chunk.finished
            if stream.empty:
                stream.prompt = stream.prompt or prompt
                self._output.end(stream)
            elif prompt is not None:
                stream.prompt = prompt
                stream.prepare(self.max_model_len)
                self._scheduler.enqueue(stream)

        return act

    def abort(self, stream_id: str) -> None:
        """End a stream without a further sink call; its slot is free at the next step. Unknown ids are ignored.

        Waits for a sink call of this stream that is in progress, unless it is made from within that call.
        """
        with self._work:
            stream = self._streams.pop(stream_id, None)
            self._counts["aborted"] += stream is not None
        if stream is None:
            return
        with stream.lock:
            stream.closed = True
            stream.ended = True
        self._wake()

    def step(self) -> bool:
        """Do what can be done without waiting: admissions, a part of the prompts, one decode step.

        Returns whether anything was computed. An exception ends every stream and is raised again.
        """
        self._runner.use_device()
        with self._work:
            acts, self._inbox = self._inbox, deque()
            self._woken = False
        try:
            for act in acts:
                act()
            return self._advance()
        except Exception as error:
            self._fail_all(StageFailed(f"talker engine: {error}"))
            raise

    def _advance(self) -> bool:
        scheduler = self._scheduler
        scheduler.release_ended()
        self._forget_closed()
        if not self._output.has_room():
            return False
        admitted = scheduler.admit()
        if admitted:
            self._runner.start_slots([self._slot_start(stream) for stream in admitted])
        parts = scheduler.prefill_parts()
        if self._options.batch_invariant:
            for part in parts:
                self._runner.prefill([part])
        elif parts:
            self._runner.prefill(parts)
        self._counts["prefill_rows"] += sum(part.count for part in parts)
        streams, rows = scheduler.decode_rows()
        if streams:
            self._output.submit(streams, self._runner.decode(rows, widest_top_k(streams)))
            self._counts["steps"] += 1
            self._counts["frames_launched"] += len(streams)
        return bool(streams or parts)

    @staticmethod
    def _slot_start(stream: TalkerStream) -> SlotStart:
        floats, ints = sampling_columns(stream.request.sampling, stream.seed, stream.laid_out.position_delta)
        return SlotStart(stream.place, floats, ints)

    def _forget_closed(self) -> None:
        with self._work:
            for stream_id in [key for key, stream in self._streams.items() if stream.closed]:
                del self._streams[stream_id]

    def wait_for_work(self, timeout_s: float) -> None:
        """Return when `step` may have something new to do, at the latest after `timeout_s` seconds."""
        with self._work:
            self._work.wait_for(lambda: self._woken or self._inbox or self._closed, timeout_s)

    def stats(self) -> dict[str, int]:
        """Counters since the start, and the streams now open, running and waiting for a slot."""
        with self._work:
            return {
                **self._counts,
                "open": len(self._streams),
                "running": len(self._scheduler.running),
                "waiting": len(self._scheduler.waiting),
            }

    def join(self) -> None:
        """Return once the sink has got everything that has been launched."""
        self._output.join()

    def close(self) -> None:
        """Fail the streams still open, hand over what is left and stop the builder. Engine thread, once."""
        with self._work:
            if self._closed:
                return
            self._closed = True
            self._work.notify_all()
        self._fail_all(StageFailed("the talker engine was closed"))
        self._output.close()

    def _fail_all(self, error: OmniError) -> None:
        with self._work:
            streams = list(self._streams.values())
        for stream in streams:
            self._output.fail(stream, error)

    def _post(self, act: Callable[[], None]) -> None:
        with self._work:
            self._inbox.append(act)
            self._work.notify_all()

    def _wake(self) -> None:
        with self._work:
            self._woken = True
            self._work.notify_all()
