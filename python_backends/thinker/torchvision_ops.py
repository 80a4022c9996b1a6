"""Lets torchvision be imported where its compiled library does not fit the installed torch.

vLLM's Qwen-VL code imports torchvision at module scope, also for text. PyPI's torchvision is built against CUDA torch;
beside the CPU build its library does not load and the import fails ("operator torchvision::nms does not exist").
Declaring the two schemas that its Python code registers shapes for is enough: image and video pre-processing run on the
Python paths.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: list[torch.library.Library] = []


def declare_missing_ops() -> list[str]:
    """Declare torchvision's operators that neither its library nor an earlier call provides; return their names.

    Call it before torchvision is imported.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return []
    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))
        except (OSError, RuntimeError):
            # Built against another torch: the schemas below stand in for it.
            continue
    missing = [name for name in _SCHEMAS if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in missing:
            library.define(_SCHEMAS[name])
        # A library that is collected takes its schemas with it.
        _declared.append(library)
    return missing
