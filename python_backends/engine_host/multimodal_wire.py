"""MultimodalPrompt as chunk metadata and tensors."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from python_backends.config.multimodal import MultimodalPrompt


def pack(prompt: MultimodalPrompt) -> tuple[dict, dict[str, np.ndarray]]:
    """Split into plain metadata and tensors; fields that are None are left out."""
    meta, tensors = {}, {}
    for item in fields(prompt):
        value = getattr(prompt, item.name)
        if isinstance(value, np.ndarray):
            tensors[item.name] = value
        elif value is not None:
            meta[item.name] = value
    return meta, tensors


def unpack(meta: dict, tensors: dict[str, np.ndarray]) -> MultimodalPrompt | None:
    """Undo `pack`; None when the chunk carries no multimodal prompt."""
    if "positions" not in tensors:
        return None
    names = {item.name for item in fields(MultimodalPrompt)}
    return MultimodalPrompt(**{k: v for k, v in (meta | tensors).items() if k in names})
