"""Every operation of the model on its own: synchronised, and compared with PyTorch's, on the same inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.model import Code2WavModel
from python_backends.code2wav.ops import Batch, Ops
from python_backends.code2wav.parameters import Code2WavParameters
from python_backends.code2wav.state import StreamState

NAMES = (
    "embed",
    "roll",
    "rms_norm",
    "rotate",
    "window_attention",
    "silu_gate",
    "depthwise_norm",
    "tap_conv",
    "residual_unit",
    "waveform",
)
# Frames, slots and positions of each step: new streams and old ones, alone and together, a slot used again.
STEPS = ((1, (0, 1), (0, 0)), (4, (0,), (1,)), (4, (0, 1), (5, 1)), (25, (1, 0), (5, 9)), (2, (2, 0), (0, 34)))


@dataclass(frozen=True)
class Worst:
    """The largest relative error (norm) of an operation, and the call that had it."""

    operation: str
    error: float
    call: str


class CheckedOps:
    """`ops`, each call followed by a wait for the device. An error of the device names the call that caused it."""

    def __init__(self, ops: Ops, device: str) -> None:
        self._ops, self._reference, self._device = ops, Ops(), device
        self.worst: dict[str, Worst] = {}

    def __getattr__(self, name: str):
        function = getattr(self._ops, name)
        if name not in NAMES:
            return function

        def call(*arguments, **options):
            copies = [part.clone() if isinstance(part, torch.Tensor) else part for part in arguments]
            expected = getattr(self._reference, name)(*copies, **options)
            text = f"{name}({', '.join(map(_shape, [*arguments, *options.values()]))})"
            self._wait()
            try:
                actual = function(*arguments, **options)
                self._wait()
            except Exception as error:
                raise RuntimeError(f"failed in {text}") from error
            if name == "roll":
                pairs = list(zip(arguments[:2], copies[:2], strict=True))
            else:
                pairs = list(zip(_tuple(actual), _tuple(expected), strict=True))
            free = arguments[4] if name == "rotate" else options.get("context", 0)
            self._compare(name, text, pairs, free)
            return actual

        return call

    def _compare(self, name: str, text: str, pairs: list, free: int) -> None:
        """`free`: rows at the front of a returned buffer, the last result, that hold nothing yet."""
        for index, (actual, expected) in enumerate(pairs):
            if actual is None:
                continue
            skip = free if name != "roll" and index + 1 == len(pairs) else 0
            actual, expected = actual[:, skip:].float(), expected[:, skip:].float()
            error = ((actual - expected).norm() / expected.norm().clamp(min=1e-20)).item()
            # Written so that not-a-number counts as worst.
            if name not in self.worst or not error <= self.worst[name].error:
                self.worst[name] = Worst(name, error, text)

    def _wait(self) -> None:
        if self._device.startswith("cuda"):
            torch.cuda.synchronize()


def check_operations(
    config: Code2WavConfig, parameters: Code2WavParameters, ops: Ops, device: str, dtype: torch.dtype
) -> list[Worst]:
    """Run a few steps with `CheckedOps`. Raises RuntimeError naming the call in which the device failed."""
    checked = CheckedOps(ops, device)
    state = StreamState(config, parameters, 3, device, dtype)
    model = Code2WavModel(config, parameters, checked)
    for frames, slots, positions in STEPS:
        codes = torch.randint(0, config.codebook_size, (len(slots), frames, config.num_quantizers), device=device)
        batch = Batch(torch.tensor(slots, device=device), torch.tensor(positions, device=device))
        model.forward(codes, batch, state)
    return list(checked.worst.values())


def _tuple(result) -> tuple:
    return result if isinstance(result, tuple) else (result,)


def _shape(part: object) -> str:
    if isinstance(part, torch.Tensor):
        return f"{str(part.dtype).removeprefix('torch.')}{list(part.shape)}"
    return str(part) if isinstance(part, int | float) else type(part).__name__
