"""A runner without a model: codes are a function of (seed, frame), so every lost or moved frame shows."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import torch

from python_backends.talker.model.shapes import read_shape
from python_backends.talker.model.slots import INTS
from python_backends.talker.options import TalkerOptions
from python_backends.talker.prompt import PrefillPart
from python_backends.talker.runner import SlotStart

SEED_LOW = INTS.index("seed_low")


def expected_codes(seed: int, frames: int, groups: int = 16) -> np.ndarray:
    """What the fake speaks for a seed: int32 [frames, groups], never the end token."""
    frame, group = np.arange(frames)[:, None], np.arange(groups)[None, :]
    return ((seed * 7919 + frame * 131 + group * 17) % 2000).astype(np.int32)


class FakeRunner:
    """Stands in for `TalkerRunner`; overwrites its one output buffer at every step, as a graph does.

    A stream ends itself after `natural_end(seed)` frames, if that gives a number.
    """

    def __init__(self, checkpoint: str | Path, options: TalkerOptions) -> None:
        self.shape = read_shape(checkpoint)
        self.device = torch.device("cpu")
        self.options = options
        self.context = options.max_model_len
        self.natural_end = lambda seed: None
        self.seeds = [0] * options.max_num_seqs
        self.prefilled: list[list[PrefillPart]] = []
        self.steps: list[np.ndarray] = []
        self._codes = torch.zeros(options.max_num_seqs, self.shape.groups, dtype=torch.int32)

    def use_device(self) -> None:
        pass

    def start_slots(self, starts: list[SlotStart]) -> None:
        for start in starts:
            self.seeds[start.slot] = start.ints[SEED_LOW]

    def prefill(self, parts: list[PrefillPart]) -> None:
        self.prefilled.append(parts)

    def decode(self, rows: np.ndarray, widest: int = 0) -> torch.Tensor:
        assert len(set(rows[:, 0])) == len(rows), "two rows of a step share a slot"
        self.steps.append(rows.copy())
        for row, (slot, _, _, frame) in enumerate(rows.tolist()):
            seed = self.seeds[slot]
            self._codes[row] = torch.from_numpy(expected_codes(seed, frame + 1)[frame])
            end = self.natural_end(seed)
            if end is not None and frame >= end:
                self._codes[row, 0] = self.shape.ids.codec_eos
        return self._codes[: len(rows)]


class DelayedTransfer:
    """Copies complete late, at random; insists that no entry is started again before it was read."""

    def __init__(self, entries: int, seed: int = 0, longest_s: float = 0.002) -> None:
        self._random = random.Random(seed)
        self._longest = longest_s
        self._snapshots: list[torch.Tensor | None] = [None] * entries
        self._never = threading.Event()

    def start(self, entry: int, codes: torch.Tensor) -> None:
        assert self._snapshots[entry] is None, "a ring entry was reused while its copy was under way"
        self._snapshots[entry] = codes.clone()

    def wait(self, entry: int) -> np.ndarray:
        if self._random.random() < 0.3:
            self._never.wait(self._random.random() * self._longest)
        snapshot, self._snapshots[entry] = self._snapshots[entry], None
        return snapshot.numpy()
