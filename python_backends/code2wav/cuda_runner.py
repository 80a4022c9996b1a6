"""Device steps on CUDA: one captured graph for each bucket, samples copied to the host behind the step loop."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from python_backends.code2wav.model import Code2WavModel
from python_backends.code2wav.ops import Batch
from python_backends.code2wav.options import Code2WavOptions
from python_backends.code2wav.runner import Consumer
from python_backends.code2wav.state import StreamState
from python_backends.engines_common.graphs import capture
from python_backends.engines_common.transfer import PinnedSnapshot


@dataclass(frozen=True)
class _InFlight:
    """Buffers of one step under way: its inputs in pinned memory, and its samples on their way to the host."""

    inputs: torch.Tensor
    samples: PinnedSnapshot


class CudaRunner:
    """Runs steps padded to a batch bucket; padding rows work on the state's scratch slot.

    A step's samples are snapshot on the device at its end, so that the next step may start, and copied to pinned
    memory on a side stream. At most `depth` steps are under way; `launch` waits for the oldest when there are more.
    """

    def __init__(self, model: Code2WavModel, state: StreamState, options: Code2WavOptions, depth: int = 2) -> None:
        self.state = state
        self._model = model
        self._device = torch.device(options.device)
        self._quantizers = model.config.num_quantizers
        self._batch_sizes = options.batch_sizes()
        copy_stream = torch.cuda.Stream(self._device)
        longest = max(options.frame_sizes())
        words = max(options.max_step_frames, longest) * self._quantizers + 2 * options.max_num_seqs
        samples = max(options.max_step_frames, longest) * model.config.samples_per_frame
        self._inputs = torch.zeros(words, dtype=torch.int64, device=self._device)
        self._free: queue.SimpleQueue[_InFlight] = queue.SimpleQueue()
        for _ in range(depth):
            snapshot = PinnedSnapshot(samples, torch.float32, self._device, copy_stream)
            self._free.put(_InFlight(torch.zeros(words, dtype=torch.int64).pin_memory(), snapshot))
        self._reserved: _InFlight | None = None
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        if options.cuda_graphs:
            with torch.cuda.device(self._device):
                self._capture_all(options)

    def reserve(self) -> None:
        """See `Runner.reserve`: waits until fewer than `depth` steps are under way."""
        if self._reserved is None:
            self._reserved = self._free.get()

    def launch(self, codes: np.ndarray, slots: Sequence[int], positions: Sequence[int]) -> Callable[[Consumer], None]:
        """See `Runner.launch`."""
        with torch.cuda.device(self._device):
            return self._launch(codes, slots, positions)

    def _launch(self, codes: np.ndarray, slots: Sequence[int], positions: Sequence[int]) -> Callable[[Consumer], None]:
        count, frames = codes.shape[:2]
        size = self.bucket(count)
        flight = self._reserved or self._free.get()
        self._reserved = None
        used = self._fill(flight.inputs.numpy(), size, codes, slots, positions)
        self._inputs[:used].copy_(flight.inputs[:used], non_blocking=True)
        graph, samples = self._graphs.get((size, frames), (None, None))
        if graph is not None:
            graph.replay()
        else:
            samples = self._forward(size, frames)
        flight.samples.take(samples)

        def deliver(consume: Consumer) -> None:
            try:
                consume(flight.samples.wait()[:count])
            finally:
                self._free.put(flight)

        return deliver

    def bucket(self, count: int) -> int:
        """The smallest batch bucket that holds `count` rows."""
        return next(size for size in self._batch_sizes if size >= count)

    def _fill(
        self, words: np.ndarray, size: int, codes: np.ndarray, slots: Sequence[int], positions: Sequence[int]
    ) -> int:
        """Lay out [slots, positions, codes], padded to `size` rows on the scratch slot. Returns the words used."""
        count = len(codes)
        words[:size] = self.state.scratch
        words[:count] = slots
        words[size : 2 * size] = 0
        words[size : size + count] = positions
        row = codes[0].size
        words[2 * size : 2 * size + count * row] = codes.reshape(-1)
        words[2 * size + count * row : 2 * size + size * row] = 0
        return 2 * size + size * row

    def _forward(self, size: int, frames: int) -> torch.Tensor:
        codes = self._inputs[2 * size : 2 * size + size * frames * self._quantizers]
        batch = Batch(self._inputs[:size], self._inputs[size : 2 * size])
        return self._model.forward(codes.view(size, frames, self._quantizers), batch, self.state)

    def _capture_all(self, options: Code2WavOptions) -> None:
        """Capture from the largest step down: later graphs fit into the memory of the first ones."""
        limit = options.max_step_frames
        shapes = [
            (size, f) for size in self._batch_sizes for f in options.frame_sizes() if size == 1 or size * f <= limit
        ]
        pool = torch.cuda.graph_pool_handle()
        for size, frames in sorted(shapes, key=lambda shape: -shape[0] * shape[1]):
            self._fill_idle(size, frames)
            self._graphs[size, frames] = capture(partial(self._forward, size, frames), pool)
        torch.cuda.empty_cache()

    def _fill_idle(self, size: int, frames: int) -> None:
        codes = np.zeros((size, frames, self._quantizers), np.int64)
        words = np.zeros(2 * size + codes.size, np.int64)
        self._fill(words, size, codes, [self.state.scratch] * size, [0] * size)
        self._inputs[: len(words)].copy_(torch.from_numpy(words))
