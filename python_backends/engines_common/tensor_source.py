"""Where weights come from: safetensors files, or random draws on the device."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open


class TensorSource(Protocol):
    """Tensors by their Hugging Face name."""

    def has(self, name: str) -> bool:
        """Tell whether the checkpoint holds `name`."""

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the tensor on the source's device and dtype. Raises ValueError for a missing name or other shape."""


class SafetensorsSource:
    """Reads one file, or shards with an index; only the tensors asked for.

    `device`, `dtype`: of what `get` returns; None keeps the CPU and the stored dtype.
    """

    def __init__(self, path: str | Path, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        self._path, self._device, self._dtype = Path(path), device, dtype
        index = self._path / "model.safetensors.index.json"
        if index.exists():
            files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            self._files = {name: self._path / file for name, file in files.items()}
        else:
            single = self._path / "model.safetensors"
            with safe_open(single, framework="pt") as handle:
                self._files = {name: single for name in handle.keys()}  # noqa: SIM118 (the handle is no mapping)
        self._open: dict[Path, Any] = {}

    def has(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Raises ValueError, naming the tensor, if it is missing or has another shape."""
        if name not in self._files:
            raise ValueError(f"{self._path}: tensor {name} is missing")
        file = self._files[name]
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt").__enter__()
        tensor = self._open[file].get_tensor(name)
        if tuple(tensor.shape) != tuple(shape):
            raise ValueError(
                f"{self._path}: {name} has shape {tuple(tensor.shape)}, the config asks for {tuple(shape)}"
            )
        return tensor.to(self._device or tensor.device, self._dtype or tensor.dtype)


class RandomSource:
    """Normal draws scaled by the fan-in, ones for norms; the same values for the same name and shape."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype

    def has(self, name: str) -> bool:
        return True

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if "norm" in name:
            return torch.ones(shape, device=self._device, dtype=self._dtype)
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        tensor = torch.empty(shape, device=self._device, dtype=self._dtype)
        return tensor.normal_(0.0, 1.0 / math.sqrt(shape[-1]), generator=generator)


def open_source(checkpoint: str | Path, load_format: str, device: torch.device, dtype: torch.dtype) -> TensorSource:
    """Pick the source that `load_format` names."""
    if load_format == "dummy":
        return RandomSource(device, dtype)
    return SafetensorsSource(Path(checkpoint), device, dtype)
