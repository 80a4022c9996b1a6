"""Tensors of a Hugging Face directory, read one by one."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open


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
        self._open: dict[Path, object] = {}

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
