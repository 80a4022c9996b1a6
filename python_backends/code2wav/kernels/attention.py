"""Streaming state in and out of a chunk's buffer, rotary embedding, attention over the sliding window."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def roll_kernel(
    buffer,
    pool,
    slots,
    positions,
    rows,
    CONTEXT: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Last rows of each stream from `pool` [slots, CONTEXT, CHANNELS] to the front of `buffer` [batch, CONTEXT + rows,
    CHANNELS]; the buffer's last CONTEXT rows back to `pool`. Zeros instead of the pool's rows at position 0.

    A program owns all rows of its columns, so that short chunks can shift the pool in place. Grid: batch, columns.
    """
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + b).to(tl.int64)
    known_rows = tl.where(tl.load(positions + b) > 0, CONTEXT, 0)
    r = tl.arange(0, ROWS)
    source = r + rows
    column = (c < CHANNELS)[None, :]
    inside = (r < CONTEXT)[:, None] & column
    before = (source < CONTEXT)[:, None]
    front = r[:, None] * CHANNELS + c[None, :]
    shifted = source[:, None] * CHANNELS + c[None, :]
    base = buffer + b * ((CONTEXT + rows) * CHANNELS)
    slot_base = pool + slot * (CONTEXT * CHANNELS)
    old = tl.load(slot_base + front, mask=(r < known_rows)[:, None] & column, other=0.0)
    kept = tl.load(slot_base + shifted, mask=(source < known_rows)[:, None] & column, other=0.0)
    new = tl.load(base + shifted, mask=inside & (source >= CONTEXT)[:, None], other=0.0)
    tl.debug_barrier()
    tl.store(base + front, old, mask=inside)
    tl.store(slot_base + front, tl.where(before, kept, new), mask=inside)


@triton.jit(do_not_specialize=["frames"])
def rotate_kernel(
    qkv,
    cos,
    sin,
    positions,
    queries,
    keys_values,
    frames,
    CONTEXT: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
):
    """Rotary embedding of one frame: queries to their tensor, keys and values to the buffer. Grid: batch · frames."""
    row = tl.program_id(0)
    b = row // frames
    f = row - b * frames
    i = tl.arange(0, HALF)
    position = tl.load(positions + b) + f
    c = tl.load(cos + position * HALF + i)[None, :]
    s = tl.load(sin + position * HALF + i)[None, :]
    h = tl.arange(0, HEAD_BLOCK)
    inside = (h < HEADS + KV_HEADS)[:, None]
    source = qkv + row * ((HEADS + 2 * KV_HEADS) * 2 * HALF)
    at = h[:, None] * (2 * HALF) + i[None, :]
    first = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + at + HALF, mask=inside, other=0.0).to(tl.float32)
    rotated_first = (first * c - second * s).to(queries.dtype.element_ty)
    rotated_second = (second * c + first * s).to(queries.dtype.element_ty)
    query = queries + row * (HEADS * 2 * HALF) + at
    is_query = (h < HEADS)[:, None]
    is_key = (h >= HEADS)[:, None]
    tl.store(query, rotated_first, mask=is_query & inside)
    tl.store(query + HALF, rotated_second, mask=is_query & inside)
    kv_row = keys_values + (b * (CONTEXT + frames) + CONTEXT + f) * (KV_HEADS * 4 * HALF)
    key = kv_row + at - HEADS * 2 * HALF
    tl.store(key, rotated_first, mask=is_key & inside)
    tl.store(key + HALF, rotated_second, mask=is_key & inside)
    v = tl.arange(0, VALUE_BLOCK)
    width: tl.constexpr = KV_HEADS * 2 * HALF
    value = tl.load(source + (HEADS + KV_HEADS) * 2 * HALF + v, mask=v < width, other=0.0)
    tl.store(kv_row + width + v, value, mask=v < width)


@triton.jit(do_not_specialize=["frames"])
def window_attention_kernel(
    queries,
    keys_values,
    positions,
    out,
    frames,
    scale,
    CONTEXT: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attention of a frame to itself and the CONTEXT frames before it; all keys fit one block.

    `queries`, `out`: [batch, frames, HEADS · HEAD_DIM]; `keys_values`: [batch, CONTEXT + frames, 2 · KV_HEADS ·
    HEAD_DIM]. Row j of the buffer is the stream's frame position - CONTEXT + j. Grid: batch · HEADS, blocks of queries.
    """
    b = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    kv_head = head // (HEADS // KV_HEADS)
    i = tl.program_id(1) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    j = tl.arange(0, BLOCK_KV)
    d = tl.arange(0, HEAD_DIM)
    count = CONTEXT + frames
    at = (b * frames + i)[:, None] * (HEADS * HEAD_DIM) + head * HEAD_DIM + d[None, :]
    query = tl.load(queries + at, mask=(i < frames)[:, None], other=0.0)
    kv_at = (b * count + j)[:, None] * (2 * KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM + d[None, :]
    key = tl.load(keys_values + kv_at, mask=(j < count)[:, None], other=0.0)
    value = tl.load(keys_values + kv_at + KV_HEADS * HEAD_DIM, mask=(j < count)[:, None], other=0.0)
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
    ahead = j[None, :] - i[:, None]
    seen = (ahead >= 0) & (ahead <= CONTEXT) & (j < count)[None, :]
    seen = seen & (j[None, :] + tl.load(positions + b) >= CONTEXT)
    scores = tl.where(seen, scores, -1.0e30)
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    weights = weights / tl.sum(weights, 1)[:, None]
    result = tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=(i < frames)[:, None])
