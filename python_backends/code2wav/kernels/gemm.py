"""A causal convolution as one matrix product over its taps, with everything that follows it in the epilogue."""

import triton
import triton.language as tl

from python_backends.code2wav.kernels.snake import snake_beta


@triton.jit(do_not_specialize=["rows", "source_rows", "batch", "startup"])
def tap_gemm_kernel(
    source,
    weight,
    bias,
    alpha,
    inverse_beta,
    residual,
    kept,
    activated,
    positions,
    batch,
    rows,
    source_rows,
    inner,
    outer,
    tap_step,
    activated_stride,
    activated_offset,
    startup,
    TAPS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    KEEP: tl.constexpr,
    AFTER: tl.constexpr,
    STARTUP: tl.constexpr,
    TMA: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
    CACHE: tl.constexpr,
):
    """y[b, t, n] = bias[n] + Σ_tap source[b, t + tap · dilation, :] @ weight[tap, :, n] (+ residual[b, t, n]).

    `source`: [batch, source_rows, inner]; `weight`: [TAPS, inner, outer]; `tap_step` = dilation · inner. `kept` and
    `residual`: [batch, rows, outer]. `activated` gets SnakeBeta of y at batch stride `activated_stride` from
    `activated_offset` on; its first `startup` elements of a stream at position 0 are zeros.

    Without TMA, `source` and `weight` are pointers and M runs over batch × rows. With TMA they are descriptors, M runs
    over all rows of `source`, and results of rows that reach into the next stream are dropped. `inner` is a multiple of
    BLOCK_K. CACHE ".ca" keeps source rows in L1.
    """
    blocks_n = tl.cdiv(outer, BLOCK_N)
    total = batch * source_rows if TMA else batch * rows
    blocks_m = tl.cdiv(total, BLOCK_M)
    # Programs that run together share rows of the source and columns of the weight in L2.
    program = tl.program_id(0)
    group = program // (GROUP * blocks_n)
    first_m = group * GROUP
    group_m = tl.minimum(blocks_m - first_m, GROUP)
    block_m = first_m + (program % (GROUP * blocks_n)) % group_m
    block_n = (program % (GROUP * blocks_n)) // group_m

    m = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    if TMA:
        b = m // source_rows
        t = m - b * source_rows
        valid = (b < batch) & (t < rows)
    else:
        b = m // rows
        t = m - b * rows
        valid = b < batch
    blocks_k = inner // BLOCK_K
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    source_row = (b * source_rows + t) * inner
    weight_block = k[:, None] * outer + n[None, :]
    for step in range(0, TAPS * blocks_k):
        # Taps innermost: they read almost the same rows, which L1 then still holds.
        tap = step % TAPS
        column = (step // TAPS) * BLOCK_K
        if TMA:
            left = source.load([block_m * BLOCK_M + tap * (tap_step // inner), column])
            right = weight.load([tap * inner + column, block_n * BLOCK_N])
        else:
            left = tl.load(
                source + source_row[:, None] + (tap * tap_step + column) + k[None, :],
                mask=valid[:, None],
                other=0.0,
                cache_modifier=CACHE,
            )
            right = tl.load(
                weight + (tap * inner + column) * outer + weight_block, mask=(n < outer)[None, :], other=0.0
            )
        accumulator = tl.dot(left, right, accumulator, input_precision=PRECISION)

    inside = valid[:, None] & (n < outer)[None, :]
    element = t[:, None] * outer + n[None, :]
    y = accumulator + tl.load(bias + n, mask=n < outer, other=0.0)[None, :]
    if RESIDUAL:
        y += tl.load(residual + b[:, None] * (rows * outer) + element, mask=inside, other=0.0).to(tl.float32)
    if KEEP:
        tl.store(kept + b[:, None] * (rows * outer) + element, y.to(kept.dtype.element_ty), mask=inside)
    if AFTER:
        a = snake_beta(
            y,
            tl.load(alpha + n, mask=n < outer, other=0.0)[None, :],
            tl.load(inverse_beta + n, mask=n < outer, other=0.0)[None, :],
        )
        if STARTUP:
            fresh = tl.load(positions + b, mask=valid, other=1) == 0
            a = tl.where(fresh[:, None] & (element < startup), 0.0, a)
        tl.store(
            activated + b[:, None] * activated_stride + activated_offset + element,
            a.to(activated.dtype.element_ty),
            mask=inside,
        )
