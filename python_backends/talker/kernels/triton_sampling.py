"""Penalty, top-k, top-p and Gumbel-max in one program per row, without sorting.

Thresholds are found by bisection on an order-preserving integer image of the float bits; see `sampler` for the rules
and `noise` for the hash, whose constants the literals here repeat.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from python_backends.talker.kernels.overlap import await_previous, launch_options, release_next
from python_backends.talker.model.noise import COUNTER_STEP, GROUPS_PER_FRAME, SEED_SALT, TOKEN_STEP
from python_backends.talker.model.sampling import RowSettings
from python_backends.talker.model.slots import FLOATS, INTS


@triton.jit
def _mix(bits):
    bits = bits ^ (bits >> 16)
    bits = bits * 0x7FEB352D
    bits = bits ^ (bits >> 15)
    bits = bits * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit(do_not_specialize=["offset", "eos", "group"])
def _draw_kernel(
    logits_ptr,
    floats_ptr,
    ints_ptr,
    frame_ptr,
    seen_ptr,
    slot_ptr,
    suppressed_ptr,
    codec_ptr,
    code_ptr,
    embedding_ptr,
    offset,
    eos,
    group,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    HIDDEN: tl.constexpr,
    HIDDEN_PAD: tl.constexpr,
    FIRST: tl.constexpr,
    FLOAT_COLUMNS: tl.constexpr,
    INT_COLUMNS: tl.constexpr,
    TEMPERATURE: tl.constexpr,
    TOP_P: tl.constexpr,
    PENALTY: tl.constexpr,
    TOP_K: tl.constexpr,
    SEED_LOW: tl.constexpr,
    SEED_HIGH: tl.constexpr,
    IGNORE_EOS: tl.constexpr,
    GROUPS: tl.constexpr,
    SALT: tl.constexpr,
    COUNTER: tl.constexpr,
    TOKEN: tl.constexpr,
    PDL: tl.constexpr,
):
    release_next(PDL)
    await_previous(PDL)
    row = tl.program_id(0)
    token = tl.arange(0, BLOCK)
    ok = token < V
    minus_inf = -float("inf")
    logits = tl.load(logits_ptr + row * V + token, mask=ok, other=minus_inf).to(tl.float32)
    floats, ints = floats_ptr + row * FLOAT_COLUMNS, ints_ptr + row * INT_COLUMNS
    if FIRST:
        slot = tl.load(slot_ptr + row)
        penalty = tl.load(floats + PENALTY)
        seen = tl.load(seen_ptr + slot * V + token, mask=ok, other=0) != 0
        scaled = tl.where(logits < 0, logits * penalty, logits / penalty)
        logits = tl.where(seen, scaled, logits)
        suppressed = tl.load(suppressed_ptr + token, mask=ok, other=1) != 0
        ignore = tl.load(ints + IGNORE_EOS) != 0
        logits = tl.where(suppressed | (ignore & (token == eos)), minus_inf, logits)

    temperature = tl.load(floats + TEMPERATURE)
    if temperature == 0.0:
        code = tl.argmax(logits, axis=0, tie_break_left=True)
    else:
        scaled = logits / temperature
        bits = scaled.to(tl.int32, bitcast=True)
        key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        key = tl.where(ok, key, -2147483648)
        high = tl.max(key, axis=0)
        low = tl.min(tl.where(ok, key, high), axis=0)
        wanted = tl.load(ints + TOP_K).to(tl.int32)
        if wanted > 0:
            wanted = tl.minimum(wanted, V)
            top = high
            while low < top:
                middle = (low | top) - ((low ^ top) >> 1)
                count = tl.sum((key >= middle).to(tl.int32), axis=0)
                if count >= wanted:
                    low = middle
                    if count == wanted:
                        top = middle
                else:
                    top = middle - 1
        threshold = low
        top_p = tl.load(floats + TOP_P)
        if top_p < 1.0:
            mass = tl.where(key >= threshold, tl.exp(scaled - tl.max(scaled, axis=0)), 0.0)
            target = top_p * tl.sum(mass, axis=0)
            top = high
            while threshold < top:
                middle = (threshold & top) + ((threshold ^ top) >> 1)
                above = tl.sum(tl.where(key > middle, mass, 0.0), axis=0)
                if above < target:
                    top = middle
                else:
                    threshold = middle + 1
        seed_low = tl.load(ints + SEED_LOW).to(tl.uint32)
        seed_high = tl.load(ints + SEED_HIGH).to(tl.uint32)
        frame = tl.load(frame_ptr + row).to(tl.uint32)
        salt = tl.full([], SALT, tl.uint32)
        stream = _mix(_mix(seed_low ^ salt) ^ seed_high)
        counter = (frame * GROUPS + group.to(tl.uint32)) * tl.full([], COUNTER, tl.uint32)
        stream = _mix(stream ^ counter)
        hashed = _mix(stream ^ (token.to(tl.uint32) * tl.full([], TOKEN, tl.uint32)))
        uniform = ((hashed >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
        noisy = scaled - tl.log(-tl.log(uniform))
        code = tl.argmax(tl.where(ok & (key >= threshold), noisy, minus_inf), axis=0, tie_break_left=True)

    tl.store(code_ptr + row, code.to(tl.int64))
    if FIRST:
        tl.store(seen_ptr + slot * V + code, 1)
    inner = tl.arange(0, HIDDEN_PAD)
    embedding = tl.load(codec_ptr + (offset + code).to(tl.int64) * HIDDEN + inner, mask=inner < HIDDEN, other=0.0)
    tl.store(embedding_ptr + row * HIDDEN + inner, embedding, mask=inner < HIDDEN)


def draw(
    logits: torch.Tensor,
    settings: RowSettings,
    group: int,
    codec_table: torch.Tensor,
    offset: int,
    *,
    eos: int = -1,
    seen: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    suppressed: torch.Tensor | None = None,
    warps: int = 4,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one code per row of `logits` [rows, vocab]; see `Kernels.draw` and `Kernels.draw_first`.

    `seen`, `slots` and `suppressed` come with the first group only. `offset`: the group's first row of `codec_table`.
    """
    rows, vocab = logits.shape
    hidden = codec_table.shape[1]
    code = torch.empty(rows, device=logits.device, dtype=torch.int64)
    embedding = codec_table.new_empty(rows, hidden)
    first = seen is not None
    prefix = "predictor_" if group else ""
    _draw_kernel[(rows,)](
        logits,
        settings.floats,
        settings.ints,
        settings.frame,
        seen.view(torch.int8) if seen is not None else logits,
        slots if slots is not None else logits,
        suppressed.view(torch.int8) if suppressed is not None else logits,
        codec_table,
        code,
        embedding,
        offset,
        eos,
        group,
        V=vocab,
        BLOCK=triton.next_power_of_2(vocab),
        HIDDEN=hidden,
        HIDDEN_PAD=triton.next_power_of_2(hidden),
        FIRST=first,
        FLOAT_COLUMNS=len(FLOATS),
        INT_COLUMNS=len(INTS),
        TEMPERATURE=FLOATS.index(f"{prefix}temperature"),
        TOP_P=FLOATS.index(f"{prefix}top_p"),
        PENALTY=FLOATS.index("penalty"),
        TOP_K=INTS.index(f"{prefix}top_k"),
        SEED_LOW=INTS.index("seed_low"),
        SEED_HIGH=INTS.index("seed_high"),
        IGNORE_EOS=INTS.index("ignore_eos"),
        GROUPS=GROUPS_PER_FRAME,
        SALT=SEED_SALT,
        COUNTER=COUNTER_STEP,
        TOKEN=TOKEN_STEP,
        num_warps=warps,
        **launch_options(),
    )
    return code, embedding
