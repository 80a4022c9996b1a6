"""A whole residual unit of a narrow decoder block in one kernel."""

import triton
import triton.language as tl

from python_backends.code2wav.kernels.snake import snake_beta


@triton.jit
def _finish(
    y,
    bias,
    alpha,
    inverse_beta,
    residual,
    kept,
    activated,
    row,
    element_row,
    activated_row,
    fresh,
    valid,
    n,
    startup,
    CHANNELS: tl.constexpr,
    KEEP: tl.constexpr,
    STARTUP: tl.constexpr,
):
    inside = valid[:, None] & (n < CHANNELS)[None, :]
    y += tl.load(bias + n)[None, :]
    y += tl.load(residual + row[:, None] + n[None, :], mask=inside, other=0.0).to(tl.float32)
    if KEEP:
        tl.store(kept + row[:, None] + n[None, :], y.to(kept.dtype.element_ty), mask=inside)
    a = snake_beta(y, tl.load(alpha + n)[None, :], tl.load(inverse_beta + n)[None, :])
    if STARTUP:
        a = tl.where(fresh[:, None] & (element_row[:, None] < startup), 0.0, a)
    tl.store(activated + activated_row[:, None] + n[None, :], a.to(activated.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "source_rows", "batch", "startup"])
def residual_unit_kernel(
    source,
    weight1,
    bias1,
    alpha1,
    inverse_beta1,
    weight2,
    bias2,
    alpha2,
    inverse_beta2,
    residual,
    kept,
    activated,
    positions,
    batch,
    rows,
    source_rows,
    tap_step,
    activated_stride,
    activated_offset,
    startup,
    TAPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    KEEP: tl.constexpr,
    STARTUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    CACHE: tl.constexpr,
):
    """y = residual + conv2(SnakeBeta(conv1(source))); stores y and SnakeBeta of y.

    `source`: [batch, source_rows, CHANNELS], already activated; `weight1`: [TAPS, CHANNELS, CHANNELS]; `weight2`:
    [CHANNELS, CHANNELS]; `residual`, `kept`: [batch, rows, CHANNELS]. A program holds all channels of its rows, so the
    hidden rows never leave it. Tensor-core tiles are powers of two and 96 or 192 channels are not: the channels are
    split in LOW + HIGH (64 + 32, 128 + 64) instead of padded. `startup` counts rows here.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    b = m // rows
    t = m - b * rows
    valid = b < batch
    k = tl.arange(0, BLOCK_K)
    low = tl.arange(0, LOW)
    high = LOW + tl.arange(0, HIGH)
    hidden_low = tl.zeros((BLOCK_M, LOW), tl.float32)
    hidden_high = tl.zeros((BLOCK_M, HIGH), tl.float32)
    source_block = ((b * source_rows + t) * CHANNELS)[:, None] + k[None, :]
    for step in range(0, TAPS * (CHANNELS // BLOCK_K)):
        # Taps innermost: they read almost the same rows, which L1 then still holds.
        tap = step % TAPS
        column = (step // TAPS) * BLOCK_K
        left = tl.load(
            source + source_block + (tap * tap_step + column), mask=valid[:, None], other=0.0, cache_modifier=CACHE
        )
        weight_block = weight1 + (tap * CHANNELS + column + k[:, None]) * CHANNELS
        hidden_low = tl.dot(left, tl.load(weight_block + low[None, :]), hidden_low, input_precision=PRECISION)
        hidden_high = tl.dot(left, tl.load(weight_block + high[None, :]), hidden_high, input_precision=PRECISION)

    dtype: tl.constexpr = source.dtype.element_ty
    hidden_low += tl.load(bias1 + low)[None, :]
    hidden_high += tl.load(bias1 + high)[None, :]
    from_low = snake_beta(hidden_low, tl.load(alpha1 + low)[None, :], tl.load(inverse_beta1 + low)[None, :]).to(dtype)
    from_high = snake_beta(hidden_high, tl.load(alpha1 + high)[None, :], tl.load(inverse_beta1 + high)[None, :]).to(
        dtype
    )

    row = (b * rows + t) * CHANNELS
    activated_row = b * activated_stride + activated_offset + t * CHANNELS
    fresh = tl.load(positions + b, mask=valid, other=1) == 0
    y = tl.dot(from_low, tl.load(weight2 + low[:, None] * CHANNELS + low[None, :]), input_precision=PRECISION)
    y = tl.dot(from_high, tl.load(weight2 + high[:, None] * CHANNELS + low[None, :]), y, input_precision=PRECISION)
    _finish(
        y, bias2, alpha2, inverse_beta2, residual, kept, activated, row, t, activated_row, fresh, valid, low, startup,
        CHANNELS, KEEP, STARTUP,
    )  # fmt: skip
    y = tl.dot(from_low, tl.load(weight2 + low[:, None] * CHANNELS + high[None, :]), input_precision=PRECISION)
    y = tl.dot(from_high, tl.load(weight2 + high[:, None] * CHANNELS + high[None, :]), y, input_precision=PRECISION)
    _finish(
        y, bias2, alpha2, inverse_beta2, residual, kept, activated, row, t, activated_row, fresh, valid, high, startup,
        CHANNELS, KEEP, STARTUP,
    )  # fmt: skip
