"""Per-row filtering and Gumbel-max sampling in plain torch: the twin of the fused kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from python_backends.talker.noise import gumbel, noise_key
from python_backends.talker.shapes import TalkerShape
from python_backends.talker.slots import FLOATS, INTS

SUPPRESSED_TAIL = 1024
CANDIDATES = 64


@dataclass(frozen=True)
class RowSettings:
    """Settings of the rows of one step: `floats` float32 [rows, len(FLOATS)], `ints` int64 [rows, len(INTS)] and
    `frame` int64 [rows], the number of frames drawn before. `widest`: no row has a larger top-k; 0 when unknown."""

    floats: torch.Tensor
    ints: torch.Tensor
    frame: torch.Tensor
    widest: int = 0

    def float(self, name: str) -> torch.Tensor:
        return self.floats[:, FLOATS.index(name)]

    def int(self, name: str) -> torch.Tensor:
        return self.ints[:, INTS.index(name)]

    def draw(self, group: int) -> RowSampling:
        """Settings of the draw of one code group."""
        prefix = "predictor_" if group else ""
        return RowSampling(
            self.float(f"{prefix}temperature"),
            self.int(f"{prefix}top_k"),
            self.float(f"{prefix}top_p"),
            noise_key(self.int("seed_low"), self.int("seed_high"), self.frame, group),
            self.widest,
        )


@dataclass(frozen=True)
class RowSampling:
    """Settings of one draw. `temperature` float32 [rows], 0 for greedy; `top_k` int64 [rows], 0 keeps all;
    `top_p` float32 [rows]; `key` int64 [rows], see `noise_key`; `widest` as in RowSettings."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    key: torch.Tensor
    widest: int = 0


def suppressed_codes(shape: TalkerShape, device: torch.device) -> torch.Tensor:
    """Bool [vocab]: the codec vocabulary's last 1024 ids except the end token, as transformers suppresses them."""
    mask = torch.zeros(shape.backbone.vocab, dtype=torch.bool, device=device)
    mask[shape.backbone.vocab - SUPPRESSED_TAIL :] = True
    mask[shape.ids.codec_eos] = False
    return mask


def penalise(
    logits: torch.Tensor, seen: torch.Tensor, penalty: torch.Tensor, suppressed: torch.Tensor, banned: torch.Tensor
) -> torch.Tensor:
    """Repetition penalty, then suppression, as transformers' processors order them.

    `logits` float32 [rows, vocab]; `seen` bool alike: codes the row has drawn; `penalty` float32 [rows];
    `suppressed` bool [vocab]; `banned` bool [rows, vocab] adds to it.
    """
    scaled = torch.where(logits < 0, logits * penalty[:, None], logits / penalty[:, None])
    logits = torch.where(seen, scaled, logits)
    return logits.masked_fill(suppressed[None, :] | banned, float("-inf"))


def filtered(logits: torch.Tensor, sampling: RowSampling) -> torch.Tensor:
    """Logits over temperature with top-k, then top-p, losers at -inf. Ties at either edge are all kept."""
    greedy = sampling.temperature == 0
    scaled = logits / torch.where(greedy, 1.0, sampling.temperature)[:, None]
    vocab = logits.shape[-1]
    depth = CANDIDATES if 0 < sampling.widest <= CANDIDATES else vocab
    ordered = scaled.topk(min(depth, vocab), dim=-1).values
    count = torch.where(sampling.top_k == 0, vocab, sampling.top_k).clamp(max=ordered.shape[-1])
    kth = ordered.gather(1, (count - 1)[:, None])
    ordered = ordered.masked_fill(ordered < kth, float("-inf"))
    probability = ordered.softmax(dim=-1)
    mass_above = probability.cumsum(-1) - probability
    inside = (mass_above < sampling.top_p[:, None]) | (sampling.top_p[:, None] >= 1)
    lowest = ordered.masked_fill(~inside, float("inf")).amin(dim=-1, keepdim=True)
    return scaled.masked_fill((scaled < kth) | (scaled < lowest), float("-inf"))


def sample(logits: torch.Tensor, sampling: RowSampling) -> torch.Tensor:
    """Draw one token per row: int64 [rows]. Greedy rows take the largest logit."""
    kept = filtered(logits, sampling)
    noisy = kept + gumbel(sampling.key, logits.shape[-1])
    greedy = (sampling.temperature == 0)[:, None]
    return torch.where(greedy, logits, noisy).argmax(dim=-1)
