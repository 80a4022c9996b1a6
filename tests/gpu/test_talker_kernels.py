"""Every Triton kernel of the Talker against its plain-torch twin, at the published widths, compiled."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from python_backends.config.sampling import TalkerSampling
from python_backends.talker.kernels.interface import Kernels, Rows
from python_backends.talker.kernels.prefill_layout import PrefillLayout
from python_backends.talker.kernels.torch_kernels import TorchKernels, rms_norm
from python_backends.talker.model.sampling import RowSettings
from python_backends.talker.model.slots import sampling_columns
from python_backends.talker.model.weights import AttentionWeights, MoeWeights
from python_backends.talker.options import TalkerOptions
from python_backends.talker.runner import SlotStart, TalkerRunner
from python_backends.talker.step import rotary_of
from tests.gpu.conftest import DEVICE

# Of the largest value; bfloat16 was measured at 0.012 at most.
BOUNDS = {"bfloat16": 0.02, "float32": 1e-4}
SLOTS, CONTEXT, OLDEST = 128, 2048, 1500
POOL = 16


@pytest.fixture(scope="module", params=BOUNDS)
def runner(request, published_widths) -> TalkerRunner:
    options = TalkerOptions(
        device=DEVICE,
        dtype=request.param,
        max_num_seqs=SLOTS,
        max_model_len=CONTEXT,
        load_format="dummy",
        cuda_graphs=False,
        kernels="triton",
    )
    runner = TalkerRunner(published_widths, options)
    columns = [sampling_columns(TalkerSampling(), 1000 + slot, 0.0) for slot in range(SLOTS)]
    runner.start_slots([SlotStart(slot, floats, ints) for slot, (floats, ints) in enumerate(columns)])
    return runner


def clear_routing(
    x: torch.Tensor, mixed: torch.Tensor | None, attention: AttentionWeights, moe: MoeWeights, eps: float, rows: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The `rows` inputs, of a block or of experts alone, whose last chosen expert is the furthest ahead of the next.

    Near a tie rounding alone decides which expert a row visits, and a comparison would then measure the experts'
    difference instead of the kernels'.
    """
    y = (x if mixed is None else x + mixed @ attention.out.t()).float()
    logits = rms_norm(y, moe.norm.float(), eps) @ moe.router.float().t()
    ranked = logits.topk(moe.top_k + 1, dim=-1).values
    best = (ranked[:, -2] - ranked[:, -1]).topk(rows).indices
    return x[best].contiguous(), None if mixed is None else mixed[best].contiguous()


class Inputs:
    """Random inputs of `rows` rows; each method calls one operation of a set of kernels."""

    def __init__(self, runner: TalkerRunner, rows: int) -> None:
        self.runner, self.rows, self.eps = runner, rows, runner.shape.backbone.eps
        self.generator = torch.Generator(runner.device).manual_seed(rows)
        self.layer, self.small_layer = runner.weights.backbone.layers[0], runner.weights.predictor.layers[0]
        self.following = runner.weights.backbone.norm
        self.slots = torch.randperm(SLOTS, device=runner.device, generator=self.generator)[:rows]
        self.at = torch.randint(0, OLDEST, (rows,), device=runner.device, generator=self.generator)
        frame = torch.arange(rows, device=runner.device)
        self.settings = RowSettings(runner.buffers.floats[self.slots], runner.buffers.ints[self.slots], frame)
        shape = runner.shape
        self.x, self.qkv = self.normal(rows, shape.backbone.hidden), self.normal(rows, shape.backbone.qkv)
        self.caches = [self.normal(*runner.buffers.k_cache.shape[1:]) for _ in range(2)]
        wide = shape.backbone.heads * shape.backbone.head_dim
        many, mixed = self.normal(POOL * rows, shape.backbone.hidden), self.normal(POOL * rows, wide)
        clear = (self.layer.attention, self.layer.mlp, self.eps, rows)
        self.block_inputs, self.prompt_rows = clear_routing(many, mixed, *clear), clear_routing(many, None, *clear)[0]
        small = shape.predictor
        self.small_buffers = self.normal(2, rows, shape.groups + 1, small.kv_heads, small.head_dim)
        self.small_qkv = self.normal(2 * rows, small.qkv)
        self.small_mixed = self.normal(rows, small.heads * small.head_dim)
        self.logits, self.small_logits = 3 * self.normal(rows, shape.backbone.vocab), 3 * self.normal(rows, small.vocab)
        seen = runner.buffers.seen.shape
        self.seen = torch.rand(seen, device=runner.device, generator=self.generator) < 0.1

    def normal(self, *size: int) -> torch.Tensor:
        drawn = torch.randn(size, device=self.runner.device, generator=self.generator)
        return drawn.to(self.runner.weights.codec_head.dtype)

    def embed(self, kernels: Kernels):
        return kernels.embed(self.at, self.slots, self.runner.buffers.codes)

    def norm(self, kernels: Kernels):
        return kernels.norm(Rows(self.x), self.layer.attention.norm, self.eps)

    def linear(self, kernels: Kernels):
        return kernels.linear(self.x, self.runner.weights.codec_head)

    def norm_linear(self, kernels: Kernels):
        return kernels.norm_linear(Rows(self.x), self.layer.attention.norm, self.layer.attention.qkv, self.eps)

    def mlp_block(self, kernels: Kernels):
        layer = self.small_layer
        return kernels.mlp_block(
            Rows(self.x), self.small_mixed, layer.attention.out, layer.mlp, self.following, self.eps
        )

    def moe_block(self, kernels: Kernels):
        x, mixed = self.block_inputs
        return kernels.moe_block(Rows(x), mixed, self.layer.attention.out, self.layer.mlp, self.following, self.eps)

    def prefill_moe(self, kernels: Kernels):
        return kernels.prefill_moe(self.prompt_rows, self.layer.mlp, self.following, self.eps)

    def attention(self, kernels: Kernels):
        k_cache, v_cache = (cache.clone() for cache in self.caches)
        rotary = rotary_of(self.at.float(), self.runner.weights.backbone.inv_freq)
        q = kernels.rotate_store(
            self.qkv, self.layer.attention, rotary, self.slots, self.at, k_cache, v_cache, self.eps
        )
        out = kernels.decode_attention(q, k_cache, v_cache, self.slots, self.at + 1, CONTEXT)
        return q, k_cache[self.slots, self.at], v_cache[self.slots, self.at], out

    def prefill_attention(self, kernels: Kernels):
        third = self.rows // 3
        counts = np.array([self.rows - third, third] if third else [self.rows])
        slots, starts = self.slots[: len(counts)].cpu().numpy(), np.array([0, 40])[: len(counts)]
        layout = PrefillLayout(slots, starts, counts, self.runner.device)
        shape = self.runner.shape.backbone
        q = self.qkv.view(self.rows, -1, shape.head_dim)[:, : shape.heads].contiguous()
        return kernels.prefill_attention(q, *self.caches, layout)

    def predictor_attention_of_two(self, kernels: Kernels):
        return self._predict(kernels, self.small_qkv, 0)

    def predictor_attention_of_one(self, kernels: Kernels):
        return self._predict(kernels, self.small_qkv[: self.rows], 9)

    def _predict(self, kernels: Kernels, qkv: torch.Tensor, first: int):
        k_buffer, v_buffer = self.small_buffers.clone()
        positions = torch.arange(self.runner.shape.groups + 1.0, device=self.runner.device)
        angles = rotary_of(positions, self.runner.weights.predictor.inv_freq)
        out = kernels.predictor_attention(qkv, self.small_layer.attention, angles, k_buffer, v_buffer, first, self.eps)
        return out, k_buffer, v_buffer

    def draw_first(self, kernels: Kernels):
        return kernels.draw_first(self.logits, self.settings, self.seen.clone(), self.slots)[0]

    def draw(self, kernels: Kernels):
        return kernels.draw(self.small_logits, self.settings, 5)[0]


OPERATIONS = [name for name in vars(Inputs) if not name.startswith("_") and name != "normal"]


def difference(ours, expected) -> float:
    """Largest difference over the largest value; for integers the share of unequal entries."""
    if isinstance(ours, Rows):
        return difference(ours.x, expected.x)
    if isinstance(ours, tuple):
        return max(difference(a, b) for a, b in zip(ours, expected, strict=True))
    assert torch.isfinite(ours).all()
    if not ours.is_floating_point():
        return float((ours != expected).float().mean())
    return float((ours.float() - expected.float()).abs().max() / expected.float().abs().max())


@pytest.mark.parametrize("rows", [1, 3, 16, 64, 128])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_kernel_equals_its_twin(runner, operation, rows):
    with torch.inference_mode():
        inputs = Inputs(runner, rows)
        act = getattr(inputs, operation)
        found = difference(act(runner.kernels), act(TorchKernels(runner.weights, runner.shape)))
    bound = 0.0 if operation.startswith("draw") else BOUNDS[runner.options.dtype]
    assert found <= bound
