"""Lets PyPI's torchvision be imported beside the CPU build of torch.

PyPI's torchvision is compiled against CUDA torch, so its library does not load here and the operators that its Python
code registers shapes for are undeclared ("operator torchvision::nms does not exist"). Declaring their schemas first is
enough: pre-processing of images and videos runs on the Python paths. Set-up copies this file into the CPU environment
with a ``.pth`` line that imports it at interpreter start; torch itself is imported only when torchvision is.
"""

import sys

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries = []


class _DeclareOperators:
    """A finder that finds nothing: it declares the schemas when ``torchvision`` is about to be imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torchvision" and not _libraries:
            import torch

            if torch.version.cuda is None:
                library = torch.library.Library("torchvision", "FRAGMENT")
                # A library that is collected takes its schemas with it.
                _libraries.append(library)
                for schema in _SCHEMAS:
                    library.define(schema)
        return None


sys.meta_path.insert(0, _DeclareOperators)
