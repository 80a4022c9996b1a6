"""Sampling settings of the rows of a step, as kernels read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from python_backends.talker.model.noise import draw_key, stream_key
from python_backends.talker.model.slots import FLOATS, INTS


@dataclass(frozen=True)
class RowSettings:
    """Settings of the rows of one step: `floats` float32 [rows, len(FLOATS)], `ints` int64 [rows, len(INTS)] and
    `frame` int64 [rows], the number of frames drawn before. `widest`: no row has a larger top-k; 0 when unknown."""

    floats: torch.Tensor
    ints: torch.Tensor
    frame: torch.Tensor
    widest: int = 0

    def float_of(self, name: str) -> torch.Tensor:
        """One column of `floats`: float32 [rows]."""
        return self.floats[:, FLOATS.index(name)]

    def int_of(self, name: str) -> torch.Tensor:
        """One column of `ints`: int64 [rows]."""
        return self.ints[:, INTS.index(name)]

    @cached_property
    def stream_key(self) -> torch.Tensor:
        return stream_key(self.int_of("seed_low"), self.int_of("seed_high"))

    def draw(self, group: int) -> RowSampling:
        """Settings of the draw of one code group."""
        prefix = "predictor_" if group else ""
        return RowSampling(
            self.float_of(f"{prefix}temperature"),
            self.int_of(f"{prefix}top_k"),
            self.float_of(f"{prefix}top_p"),
            draw_key(self.stream_key, self.frame, group),
            self.widest,
        )


@dataclass(frozen=True)
class RowSampling:
    """Settings of one draw. `temperature` float32 [rows], 0 for greedy; `top_k` int64 [rows], 0 keeps all;
    `top_p` float32 [rows]; `key` int64 [rows], see `draw_key`; `widest` as in RowSettings."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    key: torch.Tensor
    widest: int = 0
