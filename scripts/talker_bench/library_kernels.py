"""The backbone on vLLM's kernels, put beside ours: fused MoE with its tuned table, and FlashAttention 3.

Needs an installed vLLM for CUDA; the product itself does not use these.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from python_backends.talker.kernels.interface import Rows
from python_backends.talker.kernels.triton_kernels import TritonKernels
from python_backends.talker.model.slots import SlotBuffers
from python_backends.talker.model.weights import MoeWeights
from python_backends.talker.runner import TalkerRunner
from python_backends.talker.step import TalkerStep
from scripts.talker_bench.kernel_checks import difference
from scripts.talker_bench.step_times import control_of, parts, start_all

BLOCK = 16


class VllmMoe(TritonKernels):
    """`moe_block` as vLLM composes it: fused_add_rms_norm, topk_softmax, fused_experts; the shared expert on cuBLAS."""

    def __init__(self, runner: TalkerRunner) -> None:
        super().__init__(runner.weights, runner.shape)
        # The engine keeps the shared expert cut into experts of the routed width; here it is one dense layer again.
        self._shared = {id(layer.mlp): _dense(layer.mlp) for layer in runner.weights.backbone.layers}

    def moe_block(self, rows: Rows, mixed, out, moe: MoeWeights, following, eps: float) -> Rows:
        from vllm import _custom_ops as ops
        from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

        x, residual = F.linear(mixed, out), rows.x.clone()
        ops.fused_add_rms_norm(x, residual, moe.norm, eps)
        experts, count = len(moe.router), len(x)
        weight = torch.empty(count, moe.top_k, device=x.device, dtype=torch.float32)
        ids = torch.empty(count, moe.top_k, device=x.device, dtype=torch.int32)
        ops.topk_softmax(weight, ids, torch.empty_like(ids), F.linear(x, moe.router), moe.normalise)
        routed = fused_experts(x, moe.gate_up[:experts], moe.down[:experts], weight, ids)
        gate_up, down = self._shared[id(moe)]
        middle = x.new_empty(count, down.shape[1])
        torch.ops._C.silu_and_mul(middle, F.linear(x, gate_up))
        gate = F.linear(x, moe.shared_gate).sigmoid()
        return Rows(residual + routed + gate * F.linear(middle, down))


class FlashAttention3(TritonKernels):
    """`decode_attention` by FlashAttention 3; a slot is a row of its block table."""

    def __init__(self, runner: TalkerRunner) -> None:
        super().__init__(runner.weights, runner.shape)
        buffers: SlotBuffers = runner.buffers
        blocks = buffers.context // BLOCK
        tables = torch.arange((buffers.count + 1) * blocks, device=runner.device, dtype=torch.int32)
        self._tables = tables.view(buffers.count + 1, blocks)

    def decode_attention(self, q, k_cache, v_cache, slots, lengths, longest: int) -> torch.Tensor:
        from vllm.vllm_flash_attn import flash_attn_varlen_func

        count, heads, dim = q.shape
        kv_heads = k_cache.shape[2]
        out = flash_attn_varlen_func(
            q=q,
            k=k_cache.view(-1, BLOCK, kv_heads, dim),
            v=v_cache.view(-1, BLOCK, kv_heads, dim),
            max_seqlen_q=1,
            cu_seqlens_q=torch.arange(count + 1, device=q.device, dtype=torch.int32),
            max_seqlen_k=longest,
            seqused_k=lengths.int(),
            softmax_scale=dim**-0.5,
            causal=True,
            block_table=self._tables.index_select(0, slots),
            fa_version=3,
        )
        return out.view(count, heads * dim)


class Both(VllmMoe):
    """Both of the above."""

    def __init__(self, runner: TalkerRunner) -> None:
        super().__init__(runner)
        self.decode_attention = FlashAttention3(runner).decode_attention


def _dense(moe: MoeWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """The shared expert as `gate_up` [2 * width, hidden] and `down` [hidden, width]."""
    first = len(moe.router)
    gate, up = moe.gate_up[first:].chunk(2, dim=1)
    down = moe.down[first:].transpose(0, 1).flatten(1)
    return torch.cat([gate.flatten(0, 1), up.flatten(0, 1)]).contiguous(), down.contiguous()


def run(runner: TalkerRunner, batches: list[int], context: int) -> dict:
    """Milliseconds of the backbone by kernels and batch, and each kernel's difference from ours."""
    if runner.device.type != "cuda":
        return {"note": "vLLM's kernels are for CUDA"}
    start_all(runner)
    table: dict[str, dict] = {"ours": _times(runner, runner.step, batches, context)}
    for name, kind in (("fused_experts", VllmMoe), ("FlashAttention 3", FlashAttention3), ("both", Both)):
        try:
            step = TalkerStep(runner.shape, runner.weights, kind(runner), runner.buffers)
            table[name] = _times(runner, step, batches, context)
            table[name]["difference"] = round(_difference(runner, step, min(64, max(batches)), context), 4)
        except Exception as error:
            table[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    for name, row in table.items():
        print(f"backbone, {name}: {row}", flush=True)
    return table


def _times(runner: TalkerRunner, step: TalkerStep, batches: list[int], context: int) -> dict:
    return {str(batch): round(parts(step, runner, batch, context, "backbone")["backbone"], 3) for batch in batches}


def _difference(runner: TalkerRunner, step: TalkerStep, batch: int, context: int) -> float:
    """Largest difference of the backbone's rows, relative to the largest value: rounding of bf16 over all layers."""
    slots, _, rows, _ = control_of(runner, batch, context).unbind(0)
    generator = torch.Generator(runner.device).manual_seed(3)
    x = torch.randn(batch, runner.shape.backbone.hidden, device=runner.device, generator=generator)
    x, delta = x.to(runner.weights.codec_head.dtype), torch.zeros(batch, device=runner.device)
    with torch.inference_mode():
        ours, theirs = (one.backbone(x, slots, rows, delta, runner.buffers.context) for one in (runner.step, step))
    return difference(theirs, ours)
