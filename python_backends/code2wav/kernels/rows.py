"""Kernels that work row by row: norms, gate, last convolution."""

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x, weight, out, eps, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """Grid: rows."""
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    y = tl.load(x + row * CHANNELS + c, mask=c < CHANNELS, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(y * y, 0) / CHANNELS + eps)
    y = y * scale * tl.load(weight + c, mask=c < CHANNELS, other=0.0)
    tl.store(out + row * CHANNELS + c, y.to(out.dtype.element_ty), mask=c < CHANNELS)


@triton.jit
def silu_gate_kernel(gate_up, out, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """out = silu(gate) · up, `gate_up`: [rows, 2 · CHANNELS]. Grid: rows, blocks of channels."""
    row = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_up + row * 2 * CHANNELS + c, mask=c < CHANNELS, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * CHANNELS + CHANNELS + c, mask=c < CHANNELS, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * CHANNELS + c, y.to(out.dtype.element_ty), mask=c < CHANNELS)


@triton.jit(do_not_specialize=["rows"])
def depthwise_norm_kernel(
    buffer,
    weight,
    bias,
    norm,
    norm_bias,
    out,
    rows,
    eps,
    TAPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Depthwise convolution over `buffer` [batch, TAPS - 1 + rows, CHANNELS], then layer norm. Grid: batch · rows."""
    row = tl.program_id(0)
    b = row // rows
    c = tl.arange(0, BLOCK)
    inside = c < CHANNELS
    start = (b * (rows + TAPS - 1) + row - b * rows) * CHANNELS
    y = tl.load(bias + c, mask=inside, other=0.0)
    for tap in tl.static_range(TAPS):
        x = tl.load(buffer + start + tap * CHANNELS + c, mask=inside, other=0.0).to(tl.float32)
        y += x * tl.load(weight + tap * CHANNELS + c, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(y, 0) / CHANNELS
    centred = tl.where(inside, y - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / CHANNELS + eps)
    y = centred * scale * tl.load(norm + c, mask=inside, other=0.0) + tl.load(norm_bias + c, mask=inside, other=0.0)
    tl.store(out + row * CHANNELS + c, y.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "total"])
def waveform_kernel(
    buffer,
    weight,
    bias,
    out,
    rows,
    total,
    TAPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """out[b, t] = clamp(bias + Σ_tap buffer[b, t + tap] · weight[tap]). Grid: blocks of ROWS of `total` rows."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    b = m // rows
    start = (b * (rows + TAPS - 1) + m - b * rows) * CHANNELS
    c = tl.arange(0, BLOCK)
    inside = (m < total)[:, None] & (c < CHANNELS)[None, :]
    total_sum = tl.zeros((ROWS, BLOCK), tl.float32)
    for tap in tl.static_range(TAPS):
        x = tl.load(buffer + start[:, None] + (tap * CHANNELS + c)[None, :], mask=inside, other=0.0).to(tl.float32)
        total_sum += x * tl.load(weight + tap * CHANNELS + c, mask=c < CHANNELS, other=0.0).to(tl.float32)[None, :]
    y = tl.sum(total_sum, 1) + tl.load(bias)
    tl.store(out + m, tl.minimum(tl.maximum(y, -1.0), 1.0), mask=m < total)
