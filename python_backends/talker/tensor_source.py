"""Where weights come from: safetensors files, or random draws on the device."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open


class TensorSource(Protocol):
    """Tensors by their Hugging Face name."""

    def has(self, name: str) -> bool:
        """Tell whether the checkpoint holds `name`."""

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the tensor on the source's device and dtype. Raises ValueError for a missing name or other shape."""


class SafetensorsSource:
    """Reads a Hugging Face directory: one file, or shards with an index. Only the tensors asked for are read."""

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        index = path / "model.safetensors.index.json"
        if index.exists():
            files = json.loads(index.read_text())["weight_map"]
            self._files = {name: path / file for name, file in files.items()}
        else:
            single = path / "model.safetensors"
            with safe_open(single, framework="pt") as handle:
                self._files = {name: single for name in handle.keys()}  # noqa: SIM118 (the handle is no mapping)
        self._open: dict[Path, object] = {}

    def has(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self._files:
            raise ValueError(f"the checkpoint has no tensor {name}")
        file = self._files[name]
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt").__enter__()
        tensor = self._open[file].get_tensor(name)
        if tuple(tensor.shape) != tuple(shape):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the config asks for {tuple(shape)}")
        return tensor.to(self._device, self._dtype)


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
