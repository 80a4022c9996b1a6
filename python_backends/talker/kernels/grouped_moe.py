"""Mixture of experts for many rows: entries sorted by expert, then grouped products."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from python_backends.talker.kernels.torch_kernels import rms_norm, route
from python_backends.talker.weights import MoeWeights


def grouped_moe(x: torch.Tensor, weights: MoeWeights, eps: float) -> torch.Tensor:
    """As `Kernels.prefill_moe`, for bfloat16 on CUDA. The sum over a row's experts has a fixed order."""
    normed = rms_norm(x, weights.norm, eps)
    ids, share = route(normed, weights)
    top, experts = weights.top_k, len(weights.router)
    flat = ids[:, :top].flatten()
    order = flat.argsort(stable=True)
    bounds = torch.arange(experts, device=x.device)
    ends = torch.searchsorted(flat[order], bounds, right=True).int()
    rows = normed[order // top]
    gate, up = torch._grouped_mm(rows, weights.gate_up[:experts].transpose(1, 2), offs=ends).chunk(2, dim=-1)
    down = torch._grouped_mm(F.silu(gate) * up, weights.down[:experts].transpose(1, 2), offs=ends)
    routed = torch.empty_like(down)
    routed[order] = down
    total = torch.bmm(share[:, None, :top].to(x.dtype), routed.view(len(x), top, -1))[:, 0]
    for part in range(weights.shared):
        gate, up = F.linear(normed, weights.gate_up[experts + part]).chunk(2, dim=-1)
        middle = F.silu(gate) * up * share[:, top + part, None].to(x.dtype)
        total = total + F.linear(middle, weights.down[experts + part])
    return x + total
