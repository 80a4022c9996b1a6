"""Copies between host and device: uploads through pinned memory, and snapshots of codes on a stream of their own."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch


def upload(array: np.ndarray, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Copy to the device without waiting; on CUDA through pinned memory that stays alive until the copy is done."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if dtype is not None:
        tensor = tensor.to(dtype)
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def can_pin(device: torch.device) -> bool:
    """Tell whether pinned host memory can be had for asynchronous copies from `device`."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    return torch.empty(1, pin_memory=True).is_pinned()


class CodeTransfer(Protocol):
    """A ring of snapshots. An entry is started by the engine thread and waited for by the builder thread."""

    def start(self, entry: int, codes: torch.Tensor) -> None:
        """Snapshot `codes` int32 [rows, groups] in ring place `entry` and begin copying it to the host."""

    def wait(self, entry: int) -> np.ndarray:
        """Return the host copy once it is complete; valid until the next `start` of the same entry."""


class HostTransfer:
    """For codes that already lie in host memory: the snapshot is the copy."""

    def __init__(self, entries: int, rows: int, groups: int) -> None:
        self._ring = [np.empty((rows, groups), dtype=np.int32) for _ in range(entries)]
        self._rows = [0] * entries

    def start(self, entry: int, codes: torch.Tensor) -> None:
        self._rows[entry] = len(codes)
        self._ring[entry][: len(codes)] = codes.cpu().numpy()

    def wait(self, entry: int) -> np.ndarray:
        return self._ring[entry][: self._rows[entry]]


class PinnedSnapshot:
    """Values that a later step overwrites: cloned on the compute stream, then copied on `stream` into pinned memory.

    `size`: values at most. Raises RuntimeError when the host memory is not pinned: a pageable copy would wait silently.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._on_device = torch.empty(size, dtype=dtype, device=device)
        self._on_host = torch.empty(size, dtype=dtype).pin_memory()
        if not self._on_host.is_pinned():
            raise RuntimeError("results are copied behind the steps into pinned memory, and this device gives none")
        self._array = self._on_host.numpy()
        self._stream = stream
        self._cloned, self._copied = torch.cuda.Event(), torch.cuda.Event(blocking=True)
        self._shape: tuple[int, ...] = (0,)

    def take(self, values: torch.Tensor) -> None:
        """Start the copy of `values`, contiguous; returns at once."""
        count, self._shape = values.numel(), tuple(values.shape)
        self._on_device[:count].copy_(values.view(-1))
        self._cloned.record()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._cloned)
            self._on_host[:count].copy_(self._on_device[:count], non_blocking=True)
            self._copied.record()

    def wait(self) -> np.ndarray:
        """Return the host copy, in the shape taken, once it is complete; valid until the next `take`."""
        self._copied.synchronize()
        return self._array[: math.prod(self._shape)].reshape(self._shape)


class PinnedTransfer:
    """CUDA: a ring of snapshots on a stream of its own. Raises RuntimeError as `PinnedSnapshot` does."""

    def __init__(self, entries: int, rows: int, groups: int, device: torch.device) -> None:
        stream = torch.cuda.Stream(device)
        self._ring = [PinnedSnapshot(rows * groups, torch.int32, device, stream) for _ in range(entries)]

    def start(self, entry: int, codes: torch.Tensor) -> None:
        self._ring[entry].take(codes)

    def wait(self, entry: int) -> np.ndarray:
        return self._ring[entry].wait()
