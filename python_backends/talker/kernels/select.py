"""Which kernels an engine runs on."""

from __future__ import annotations

from python_backends.talker.kernels.interface import Kernels
from python_backends.talker.kernels.torch_kernels import TorchKernels
from python_backends.talker.options import TalkerOptions
from python_backends.talker.shapes import TalkerShape
from python_backends.talker.weights import TalkerWeights


def make_kernels(options: TalkerOptions, weights: TalkerWeights, shape: TalkerShape) -> Kernels:
    """Triton on CUDA unless `options.kernels` says otherwise; plain torch elsewhere.

    Triton is imported only where it is used: the CPU needs none.
    """
    on_cuda = weights.text_table.device.type == "cuda"
    if options.kernels == "torch" or (options.kernels == "auto" and not on_cuda):
        return TorchKernels(weights, shape)
    from python_backends.talker.kernels.triton_kernels import TritonKernels

    return TritonKernels(weights, shape)
