"""Where the Talker's weights come from: safetensors files, or random draws on the device."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Protocol

import torch

from python_backends.engines_common.weights import SafetensorsSource


class TensorSource(Protocol):
    """Tensors by their Hugging Face name."""

    def has(self, name: str) -> bool:
        """Tell whether the checkpoint holds `name`."""

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the tensor on the source's device and dtype. Raises ValueError for a missing name or other shape."""


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
