"""The model on its device: prompts and steps by slot, with one graph for each batch bucket on CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from python_backends.engines_common.graphs import GraphPool, capture
from python_backends.engines_common.tensor_source import open_source
from python_backends.engines_common.transfer import upload
from python_backends.talker.kernels.interface import Kernels
from python_backends.talker.kernels.torch_kernels import TorchKernels
from python_backends.talker.model.shapes import TalkerShape, read_shape
from python_backends.talker.model.slots import allocate_slots
from python_backends.talker.model.weights import TalkerWeights, load_weights
from python_backends.talker.options import DEFAULT_ROWS, TalkerOptions
from python_backends.talker.prefill import Prefill
from python_backends.talker.prompt import PrefillPart
from python_backends.talker.step import CONTROL_COLUMNS, TalkerStep


@dataclass(frozen=True)
class SlotStart:
    """What a slot holds before its first frame; `floats` and `ints` as `sampling_columns` gives them."""

    slot: int
    floats: list[float]
    ints: list[int]


def indexed_device(name: str) -> torch.device:
    """The device named; "cuda" alone means the current one."""
    device = torch.device(name)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def make_kernels(name: str, weights: TalkerWeights, shape: TalkerShape) -> Kernels:
    """The kernels that `name` asks for: "torch", "triton" or "auto", which is Triton on CUDA and torch elsewhere.

    Triton is imported only where it is used: the CPU needs none.
    """
    if name == "torch" or (name == "auto" and weights.text_table.device.type != "cuda"):
        return TorchKernels(weights, shape)
    from python_backends.talker.kernels.triton_kernels import TritonKernels

    return TritonKernels(weights, shape)


class TalkerRunner:
    """Owns weights, slot buffers and graphs. One thread uses it; nothing here waits for the device."""

    def __init__(self, checkpoint: str | Path, options: TalkerOptions) -> None:
        self.device = indexed_device(options.device)
        self.use_device()
        dtype = getattr(torch, options.dtype)
        self.options = options
        self.shape: TalkerShape = read_shape(checkpoint)
        with torch.inference_mode():
            source = open_source(checkpoint, options.load_format, self.device, dtype)
            self.weights: TalkerWeights = load_weights(source, self.shape, self.device)
            self.context = options.max_model_len or self._default_context(dtype)
            self.buffers = allocate_slots(self.shape, options.max_num_seqs, self.context, self.device, dtype)
            self.kernels = make_kernels(options.kernels, self.weights, self.shape)
            self.step = TalkerStep(self.shape, self.weights, self.kernels, self.buffers)
            self._prefill = Prefill(self.shape, self.weights, self.kernels, self.buffers)
            self._graphs: dict[int, CapturedStep] = {}
            if self.device.type == "cuda" and options.cuda_graphs:
                self._capture()

    def use_device(self) -> None:
        """Make the device the calling thread's current one: kernels are launched on that."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def _default_context(self, dtype: torch.dtype) -> int:
        """Rows of context for which the caches of all slots take an eighth of the device's memory."""
        if self.device.type != "cuda":
            return DEFAULT_ROWS
        backbone = self.shape.backbone
        row = 2 * backbone.layers * backbone.kv_heads * backbone.head_dim * dtype.itemsize
        memory = torch.cuda.get_device_properties(self.device).total_memory
        memory *= torch.cuda.get_per_process_memory_fraction(self.device)
        fitting = int(memory / 8) // (row * (self.options.max_num_seqs + 1))
        return max(DEFAULT_ROWS, min(fitting, self.shape.max_positions))

    def _capture(self) -> None:
        """Capture the largest bucket first, so that the smaller ones fit in its memory pool."""
        pool = torch.cuda.graph_pool_handle()
        self.capture_prefill(pool)
        for size in reversed(self.options.buckets):
            self._graphs[size] = CapturedStep(self, size, pool)

    def capture_prefill(self, pool: GraphPool) -> None:
        """Capture graphs for portions of prompts, which would otherwise wait for the host's launches."""
        with torch.inference_mode():
            self._prefill.capture(self.options.max_prefill_rows, pool)

    def start_slots(self, starts: list[SlotStart]) -> None:
        """Reset the state of slots whose streams are about to be prefilled."""
        buffers = self.buffers
        slots = upload(np.array([start.slot for start in starts], dtype=np.int64), self.device)
        first = np.full((len(starts), self.shape.groups), -1, dtype=np.int32)
        first[:, 0] = self.shape.ids.codec_bos
        with torch.inference_mode():
            buffers.codes.index_copy_(0, slots, upload(first, self.device))
            buffers.seen.index_fill_(0, slots, False)
            if self.device.type == "cpu":
                # PyTorch's attention multiplies what it masks with zero, which a NaN of the slot's last owner outlives.
                buffers.k_cache.index_fill_(1, slots, 0.0)
                buffers.v_cache.index_fill_(1, slots, 0.0)
            floats = np.array([start.floats for start in starts], dtype=np.float32)
            ints = np.array([start.ints for start in starts], dtype=np.int64)
            buffers.floats.index_copy_(0, slots, upload(floats, self.device))
            buffers.ints.index_copy_(0, slots, upload(ints, self.device))

    def prefill(self, parts: list[PrefillPart]) -> None:
        """Compute prompt rows into the caches."""
        with torch.inference_mode():
            self._prefill(parts)

    def padded_control(self, rows: np.ndarray) -> np.ndarray:
        """Fill `rows` int64 [n, 4] up to its bucket with rows that write to the scratch slot alone."""
        bucket = next(size for size in self.options.buckets if size >= len(rows))
        return np.concatenate([rows, self.idle_rows(bucket - len(rows))])

    def idle_rows(self, count: int) -> np.ndarray:
        """Control rows int64 [count, 4] that touch the scratch slot alone."""
        rows = np.zeros((count, len(CONTROL_COLUMNS)), dtype=np.int64)
        rows[:, 0] = self.buffers.count
        return rows

    def decode(self, rows: np.ndarray, widest: int = 0) -> torch.Tensor:
        """Launch one step for control rows int64 [n, 4]; give the codes int32 [n, groups] on the device.

        `widest`: no row has a larger top-k, 0 when unknown; it spares work on the CPU.

        With graphs the tensor is a static buffer that the next step of any bucket may overwrite.
        """
        control = self.padded_control(rows)
        with torch.inference_mode():
            graph = self._graphs.get(len(control))
            if graph is not None:
                return graph.replay(control)[: len(rows)]
            longest = int(control[:, 2].max()) + 1 if self.device.type == "cpu" else self.buffers.context
            return self.step(upload(control.T, self.device), longest, widest)[: len(rows)]


class CapturedStep:
    """The step of one bucket as a CUDA graph."""

    def __init__(self, runner: TalkerRunner, size: int, pool: GraphPool) -> None:
        self._control = upload(runner.idle_rows(size).T, runner.device)
        context = runner.buffers.context
        self._graph, self._codes = capture(lambda: runner.step(self._control, context), pool)

    def replay(self, control: np.ndarray) -> torch.Tensor:
        self._control.copy_(torch.from_numpy(np.ascontiguousarray(control.T)).pin_memory(), non_blocking=True)
        self._graph.replay()
        return self._codes
