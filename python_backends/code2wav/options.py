"""What the caller of the engine chooses, and what it must provide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from python_backends.config.errors import InvalidRequest, OmniError
from python_backends.config.stage import Finish

SAMPLE_RATE = 24_000
SAMPLE_FORMATS = ("float32", "int16")


@dataclass(frozen=True)
class Code2WavOptions:
    """Options of the Code2Wav engine.

    `device`: a torch device string. `dtype`: "float32" or "bfloat16", of weights, activations and streaming state.
    `max_num_seqs`: streams with a state slot at once; `max_waiting` more may queue for one.
    `batch_wait_ms`: how long a chunk may wait for others of its size, first chunks excepted.
    `frame_buckets`, `batch_buckets`: sizes of one device step, one CUDA graph each; empty batch buckets mean powers
    of two, and from 16 on the sizes halfway between them, up to `max_num_seqs`. `max_step_frames` bounds streams ×
    frames of one step, and with it device memory.
    `codec_chunk_frames`: the Talker's steady chunk. `load_format`: "auto" reads the checkpoint, "dummy" makes random
    weights on the device.
    Raises ValueError for values out of range.
    """

    device: str = "cpu"
    dtype: str = "float32"
    max_num_seqs: int = 64
    max_waiting: int = 256
    cuda_graphs: bool = True
    batch_wait_ms: float = 2.0
    codec_chunk_frames: int = 25
    frame_buckets: tuple[int, ...] = (1, 2, 4, 8, 16, 25, 50)
    batch_buckets: tuple[int, ...] = ()
    max_step_frames: int = 1600
    load_format: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype must be float32 or bfloat16, got {self.dtype!r}")
        if self.load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format must be auto or dummy, got {self.load_format!r}")
        if 1 not in self.frame_buckets:
            raise ValueError("frame_buckets must contain 1, so that any number of frames can be decoded")
        if min(self.frame_buckets) < 1 or min(self.batch_buckets, default=1) < 1:
            raise ValueError("buckets must be positive")
        if max(self.frame_buckets) > self.max_step_frames:
            raise ValueError("max_step_frames must hold the largest frame bucket")
        for name in ("max_num_seqs", "codec_chunk_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.batch_wait_ms < 0 or self.max_waiting < 0:
            raise ValueError("batch_wait_ms and max_waiting must not be negative")

    def frame_sizes(self) -> tuple[int, ...]:
        """Frame buckets in rising order, the steady chunk among them."""
        return tuple(sorted({*self.frame_buckets, min(self.codec_chunk_frames, self.max_step_frames)}))

    def batch_sizes(self) -> tuple[int, ...]:
        """Batch buckets in rising order; the last one is `max_num_seqs`."""
        powers = [2**power for power in range(self.max_num_seqs.bit_length())]
        sizes = self.batch_buckets or [*powers, *(3 * power // 2 for power in powers if power >= 16)]
        return tuple(sorted({size for size in sizes if size < self.max_num_seqs} | {self.max_num_seqs}))


@dataclass(frozen=True)
class Code2WavRequest:
    """One stream to decode. `sample_format`: "float32" in [-1, 1] or "int16". Raises InvalidRequest."""

    stream_id: str
    sample_format: str = "float32"

    def __post_init__(self) -> None:
        if not isinstance(self.stream_id, str) or not self.stream_id:
            raise InvalidRequest("stream_id", "must be a non-empty string")
        if self.sample_format not in SAMPLE_FORMATS:
            raise InvalidRequest(
                "sample_format", f"must be one of {', '.join(SAMPLE_FORMATS)}, got {self.sample_format!r}"
            )


class Code2WavSink(Protocol):
    """Where results go. Calls for one stream come in order, from one thread at a time."""

    def audio(self, stream_id: str, samples: np.ndarray, finish: Finish | None) -> None:
        """`samples`: 1-D float32 or int16 at 24 kHz, possibly empty when `finish` is given, which ends the stream."""

    def failed(self, stream_id: str, error: OmniError) -> None:
        """The stream ended with `error`."""
