"""Copies between host and device: uploads through pinned memory, and snapshots of codes on a stream of their own."""

from __future__ import annotations

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


class PinnedTransfer:
    """CUDA: clone on the compute stream, copy on a stream of its own into pinned memory, mark with an event.

    Raises RuntimeError at construction when the host memory is not pinned: a pageable copy would wait silently.
    """

    def __init__(self, entries: int, rows: int, groups: int, device: torch.device) -> None:
        size = (entries, rows, groups)
        self._device_ring = torch.empty(size, dtype=torch.int32, device=device)
        self._host_ring = torch.empty(size, dtype=torch.int32, pin_memory=True)
        if not self._host_ring.is_pinned():
            raise RuntimeError("asynchronous output needs pinned host memory, and this device gives none")
        self._host_arrays = self._host_ring.numpy()
        self._stream = torch.cuda.Stream(device)
        self._cloned = [torch.cuda.Event() for _ in range(entries)]
        self._copied = [torch.cuda.Event(blocking=True) for _ in range(entries)]
        self._rows = [0] * entries

    def start(self, entry: int, codes: torch.Tensor) -> None:
        rows = self._rows[entry] = len(codes)
        snapshot = self._device_ring[entry, :rows]
        snapshot.copy_(codes)
        self._cloned[entry].record()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._cloned[entry])
            self._host_ring[entry, :rows].copy_(snapshot, non_blocking=True)
            self._copied[entry].record()

    def wait(self, entry: int) -> np.ndarray:
        self._copied[entry].synchronize()
        return self._host_arrays[entry, : self._rows[entry]]
