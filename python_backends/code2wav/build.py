"""From a checkpoint and options to something that runs steps."""

from __future__ import annotations

from pathlib import Path

import torch

from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.model import Code2WavModel
from python_backends.code2wav.ops import Ops
from python_backends.code2wav.options import Code2WavOptions
from python_backends.code2wav.parameters import build_parameters
from python_backends.code2wav.plan import FLOAT32_PLAN, H200_PLAN
from python_backends.code2wav.runner import EagerRunner, Runner
from python_backends.code2wav.state import StreamState
from python_backends.code2wav.weights import load_tensors, random_tensors


def build_runner(checkpoint: str | Path, config: Code2WavConfig, options: Code2WavOptions) -> Runner:
    """Load or draw the weights, allocate the state pools and, on CUDA, capture the graphs."""
    dtype = getattr(torch, options.dtype)
    if options.load_format == "dummy":
        tensors = random_tensors(config, options.device, options.seed)
    else:
        tensors = load_tensors(checkpoint, config)
    parameters = build_parameters(tensors, config, options.device, dtype)
    state = StreamState(config, parameters, options.max_num_seqs, options.device, dtype)
    if not options.device.startswith("cuda"):
        return EagerRunner(Code2WavModel(config, parameters, Ops()), state, options.device)
    from python_backends.code2wav.cuda_runner import CudaRunner
    from python_backends.code2wav.triton_ops import TritonOps

    ops = TritonOps(H200_PLAN if dtype == torch.bfloat16 else FLOAT32_PLAN)
    return CudaRunner(Code2WavModel(config, parameters, ops), state, options)
