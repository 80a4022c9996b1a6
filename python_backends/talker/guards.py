"""Which output path an engine takes, and why."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from python_backends.talker.options import TalkerOptions
from python_backends.talker.transfer import can_pin


@dataclass(frozen=True)
class Guard:
    """One condition of asynchronous output, and what was found."""

    name: str
    passed: bool
    reason: str


@dataclass(frozen=True)
class OutputGuards:
    """Asynchronous output runs when every guard has passed."""

    guards: tuple[Guard, ...]

    @property
    def asynchronous(self) -> bool:
        return all(guard.passed for guard in self.guards)

    def __str__(self) -> str:
        path = "asynchronous" if self.asynchronous else "synchronous"
        failed = [guard for guard in self.guards if not guard.passed]
        return f"{path} output: " + "; ".join(guard.reason for guard in failed or self.guards)


def _option(options: TalkerOptions, name: str) -> Guard:
    on = bool(getattr(options, name))
    return Guard(name, on, f"{name} is {'on' if on else 'off'}")


def evaluate_guards(options: TalkerOptions, device: torch.device, own_transfer: bool = False) -> OutputGuards:
    """Check the options and the device. `own_transfer`: the caller brings the transfer, and its pinned memory."""
    if own_transfer:
        pinned = Guard("pinned_copies", True, "the caller's transfer makes the copies")
    elif can_pin(device):
        pinned = Guard("pinned_copies", True, f"{device} copies into pinned memory")
    else:
        pinned = Guard("pinned_copies", False, f"{device} has no asynchronous copies into pinned memory")
    names = ("async_output", "async_chunk", "async_scheduling")
    return OutputGuards((*(_option(options, name) for name in names), pinned))
