"""Per-row filtering and Gumbel-max sampling in plain torch: the twin of the fused kernels."""

from __future__ import annotations

import torch

from python_backends.talker.model.noise import gumbel
from python_backends.talker.model.sampling import RowSampling
from python_backends.talker.model.shapes import TalkerShape

SUPPRESSED_TAIL = 1024
CANDIDATES = 64


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


def candidates(logits: torch.Tensor, sampling: RowSampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits over temperature, largest first, after top-k and then top-p, losers at -inf; and their token ids.

    Both are [rows, n] with n the vocabulary, or CANDIDATES where no row's top-k is larger. Ties at an edge are kept.
    """
    vocab = logits.shape[-1]
    temperature = torch.where(sampling.temperature == 0, 1.0, sampling.temperature)
    depth = CANDIDATES if 0 < sampling.widest <= CANDIDATES else vocab
    scaled, tokens = (logits / temperature[:, None]).topk(min(depth, vocab), dim=-1)
    count = torch.where(sampling.top_k == 0, vocab, sampling.top_k).clamp(max=scaled.shape[-1])
    scaled = scaled.masked_fill(scaled < scaled.gather(1, (count - 1)[:, None]), float("-inf"))
    probability = scaled.softmax(dim=-1)
    mass_above = probability.cumsum(-1) - probability
    top_p = sampling.top_p[:, None]
    inside = (mass_above < top_p) | (top_p >= 1)
    lowest = scaled.masked_fill(~inside, float("inf")).amin(dim=-1, keepdim=True)
    return scaled.masked_fill(scaled < lowest, float("-inf")), tokens


def sample(logits: torch.Tensor, sampling: RowSampling) -> torch.Tensor:
    """Draw one token per row: int64 [rows]. Greedy rows take the largest logit."""
    scaled, tokens = candidates(logits, sampling)
    best = (scaled + gumbel(sampling.key, tokens)).argmax(dim=-1, keepdim=True)
    return torch.where(sampling.temperature == 0, logits.argmax(dim=-1), tokens.gather(1, best)[:, 0])
