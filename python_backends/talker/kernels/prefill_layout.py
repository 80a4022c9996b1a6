"""Which rows of a flat batch of prompt rows belong together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from python_backends.engines_common.transfer import upload

TILE_ROWS = 64


@dataclass(frozen=True)
class PaddedRows:
    """How flat rows map to a padded batch: `at` int64 [parts, longest part] (padding repeats row 0 of the part),
    `back` int64 [rows] into the padded batch, `slots` int64 [parts], `mask` bool [parts, 1, longest part, context]."""

    at: torch.Tensor
    back: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True)
class TileLayout:
    """Only the `tiles` of a PrefillLayout, in a buffer whose other rows are zero: tiles of no rows."""

    tiles: torch.Tensor


@dataclass(frozen=True)
class PrefillLayout:
    """Parts one after another: part i has `counts[i]` rows, the first at row `starts[i]` of slot `slots[i]`'s cache.
    All int64 [parts] on the host."""

    slots: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    device: torch.device

    @cached_property
    def padded(self) -> PaddedRows:
        offsets = np.cumsum(self.counts) - self.counts
        step = np.arange(self.counts.max())
        inside = step[None, :] < self.counts[:, None]
        at = offsets[:, None] + np.where(inside, step[None, :], 0)
        back = np.flatnonzero(inside.reshape(-1))
        context = int((self.starts + self.counts).max())
        own = upload(self.starts[:, None] + step[None, :], self.device)
        mask = torch.arange(context, device=self.device)[None, None, :] <= own[:, :, None]
        return PaddedRows(
            upload(at, self.device), upload(back, self.device), upload(self.slots, self.device), mask[:, None]
        )

    @cached_property
    def tiles(self) -> torch.Tensor:
        """Rows in blocks of at most TILE_ROWS: int64 [tiles, 4] of first flat row, rows, slot, first cache row."""
        offsets = np.cumsum(self.counts) - self.counts
        found = [
            (offset + first, min(TILE_ROWS, count - first), slot, start + first)
            for offset, count, slot, start in zip(offsets, self.counts, self.slots, self.starts, strict=True)
            for first in range(0, count, TILE_ROWS)
        ]
        return upload(np.array(found, dtype=np.int64), self.device)
