"""Picking each row's experts, and collecting each expert's rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from python_backends.talker.kernels.overlap import await_previous, launch_options, release_next
from python_backends.talker.model.weights import MoeWeights


@dataclass(frozen=True)
class Routing:
    """One row's choices are its experts in the order of their ids, then the parts of the shared expert.

    `ids` int32 and `share` float32 [rows, top_k + shared]. An entry is row * (top_k + shared) + choice; the first
    `counts[e]` values of `entries` int32 [experts, rows] are the entries of expert e, in no fixed order. Nothing may
    depend on that order.
    """

    ids: torch.Tensor
    share: torch.Tensor
    entries: torch.Tensor
    counts: torch.Tensor


@triton.jit(do_not_specialize=["rows"])
def _select_kernel(
    logit_ptr,
    id_ptr,
    share_ptr,
    entry_ptr,
    count_ptr,
    rows,
    EXPERTS: tl.constexpr,
    EXPERTS_PAD: tl.constexpr,
    TOP: tl.constexpr,
    SHARED: tl.constexpr,
    NORMALISE: tl.constexpr,
    PARTS: tl.constexpr,
    COLLECT: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    await_previous(PDL)
    row = tl.program_id(0)
    expert = tl.arange(0, EXPERTS_PAD)
    real = expert < EXPERTS
    logits = tl.zeros([EXPERTS_PAD], dtype=tl.float32)
    gate = 0.0
    for part in tl.static_range(PARTS):
        at = logit_ptr + (part * rows + row) * (EXPERTS + 1)
        logits += tl.load(at + expert, mask=real, other=0.0)
        gate += tl.load(at + EXPERTS)
    logits = tl.where(real, logits, -float("inf"))
    # An order-preserving integer image of the float bits, then the lower id first: no two keys are equal.
    bits = logits.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64) * 4294967296 + (EXPERTS_PAD - 1 - expert)
    left = key
    lowest = tl.max(left, axis=0)
    for _ in tl.static_range(TOP - 1):
        left = tl.where(left == lowest, -9223372036854775807, left)
        lowest = tl.max(left, axis=0)
    chosen = key >= lowest
    share = tl.exp(logits - tl.max(logits, axis=0))
    if NORMALISE:
        share = tl.where(chosen, share, 0.0)
    share = share / tl.sum(share, axis=0)
    choices: tl.constexpr = TOP + SHARED
    place = row * choices + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(id_ptr + place, expert, mask=chosen)
    tl.store(share_ptr + place, share, mask=chosen)
    if COLLECT:
        rank = tl.atomic_add(count_ptr + expert, 1, mask=chosen, sem="relaxed")
        tl.store(entry_ptr + expert * rows + rank, place, mask=chosen)
    for part in tl.static_range(SHARED):
        tl.store(id_ptr + row * choices + TOP + part, EXPERTS + part)
        tl.store(share_ptr + row * choices + TOP + part, tl.sigmoid(gate))


def select(logits: torch.Tensor, weights: MoeWeights, counts: torch.Tensor | None) -> Routing:
    """Choose from `logits` float32 [parts, rows, experts + 1], parts to be summed, the shared gate last.

    `counts` int32 [experts] of zeros: experts' entries are collected there; without it they are not.
    """
    parts, rows, experts = logits.shape
    choices = weights.top_k + weights.shared
    ids = torch.empty(rows, choices, device=logits.device, dtype=torch.int32)
    share = torch.empty(rows, choices, device=logits.device, dtype=torch.float32)
    entries = torch.empty(experts - 1, rows, device=logits.device, dtype=torch.int32) if counts is not None else ids
    _select_kernel[(rows,)](
        logits,
        ids,
        share,
        entries,
        counts if counts is not None else ids,
        rows,
        EXPERTS=experts - 1,
        EXPERTS_PAD=triton.next_power_of_2(experts - 1),
        TOP=weights.top_k,
        SHARED=weights.shared,
        NORMALISE=weights.normalise,
        PARTS=parts,
        COLLECT=counts is not None,
        num_warps=1,
        **launch_options(),
    )
    return Routing(ids, share, entries, counts if counts is not None else ids)
