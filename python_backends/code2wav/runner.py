"""One device step over a batch of streams, and the way its samples come back to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from python_backends.code2wav.model import Code2WavModel
from python_backends.code2wav.ops import Batch
from python_backends.code2wav.state import StreamState

Consumer = Callable[[np.ndarray], None]


class Runner(Protocol):
    """Runs steps on one device. Only the engine thread calls `launch`."""

    def reserve(self) -> None:
        """Wait until a step can be launched at once, so that it is planned with the newest state of the streams."""

    def launch(self, codes: np.ndarray, slots: Sequence[int], positions: Sequence[int]) -> Callable[[Consumer], None]:
        """Start a step. `codes`: [batch, frames, quantizers] int64; `slots`, `positions`: one for each row.

        Returns a function that waits for the samples and passes them, float32 [batch, frames · samples_per_frame], to
        its argument; the array is valid during that call only. The function must be called exactly once.
        """


class EagerRunner:
    """Runs a step at once, without copies in flight.

    On Intel CPUs with AVX-512 and layers of up to 768 channels, as the tiny checkpoint's, a stream's samples are the
    same bit for bit whatever its chunks are and whoever shares its steps: MKL's products then round a row the same way
    among any number of rows above one. From about 1000 terms a sum (the published sizes) and on other CPUs they do not.
    """

    def __init__(self, model: Code2WavModel, state: StreamState, device: str) -> None:
        self._model = model
        self.state = state
        self._device = device

    def reserve(self) -> None:
        """Steps end before `launch` returns; there is nothing to wait for."""

    def launch(self, codes: np.ndarray, slots: Sequence[int], positions: Sequence[int]) -> Callable[[Consumer], None]:
        count = len(codes)
        if codes.shape[:2] == (1, 1):  # the product with a single row is another routine, which rounds differently
            codes, slots, positions = np.repeat(codes, 2, 0), [*slots, self.state.scratch], [*positions, 0]
        to_device = [torch.as_tensor(np.asarray(rows, np.int64), device=self._device) for rows in (slots, positions)]
        samples = self._model.forward(torch.as_tensor(codes, device=self._device), Batch(*to_device), self.state)
        array = samples.cpu().numpy()[:count]
        return lambda consume: consume(array)
