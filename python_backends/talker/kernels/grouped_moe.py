"""Mixture of experts for many rows: entries sorted by expert, then grouped products."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from python_backends.talker.kernels.interface import Rows
from python_backends.talker.kernels.triton_linear import Tile, linear_parts
from python_backends.talker.kernels.triton_prefill import gather_sum_norm
from python_backends.talker.kernels.triton_routing import select
from python_backends.talker.kernels.triton_rows import rms_norm
from python_backends.talker.model.weights import MoeWeights

GROUPED_ARCHITECTURES = (9, 10)


def can_group(x: torch.Tensor) -> bool:
    """Whether `grouped_moe` runs on the device alone, as a captured graph must.

    torch has a kernel of its own for bfloat16 on Hopper and data-centre Blackwell. For all else its grouped product
    copies the ends of the groups to the host and loops over them there, which no graph can hold (seen in torch 2.13).
    """
    return (
        x.dtype == torch.bfloat16
        and x.is_cuda
        and torch.cuda.get_device_capability(x.device)[0] in GROUPED_ARCHITECTURES
    )


def grouped_moe(x: torch.Tensor, weights: MoeWeights, following: torch.Tensor, eps: float, router: Tile) -> Rows:
    """See `Kernels.prefill_moe`; where `can_group` holds. The sum over a row's experts has a fixed order.

    Few operations matter here: a portion of prompts takes the device less time than a long row of launches the host.
    """
    normed = rms_norm(x, weights.norm, eps)
    routing = select(linear_parts(normed, weights.routing, replace(router, split=1)), weights, None)
    choices = routing.ids.shape[1]
    experts, order = routing.ids.flatten().sort(stable=True)
    bounds = torch.arange(len(weights.gate_up), device=x.device, dtype=experts.dtype)
    ends = torch.searchsorted(experts, bounds, right=True, out_int32=True)
    joined = torch._grouped_mm(normed[order // choices], weights.gate_up.transpose(1, 2), offs=ends)
    gate, up = joined.chunk(2, dim=-1)
    entries = torch._grouped_mm(F.silu(gate) * up, weights.down.transpose(1, 2), offs=ends)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=x.device)
    return Rows(*gather_sum_norm(entries, places, routing.share, x, following, eps))
