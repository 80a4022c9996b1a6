"""What kernels of our own are worth, each against what would replace it, in one table; at most 3 minutes on an H200.

    python scripts/bench_kernels.py --out kernels.json
Published sizes unless `--toy`, random weights. A row whose other way is not there says why. On the CPU, where both ways
are plain torch, the script shows only that it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.ops import Ops
from python_backends.talker.kernels.prefill_layout import PrefillLayout
from python_backends.talker.options import TalkerOptions
from python_backends.talker.runner import TalkerRunner
from python_backends.talker.step import TalkerStep
from scripts.bench.report import Report, parser
from scripts.bench.timing import milliseconds
from scripts.bench.toy import TOY_CODE2WAV, config_file
from scripts.bench_code2wav import default_ops, make_model, step_ms
from scripts.bench_talker import start_all, step_times

CONTEXT, PROMPTS, PROMPT_ROWS = 1000, 16, 128
SMALL = ("rms_norm", "silu_gate", "rotate", "window_attention")


def compared(name: str, other: str, ours: Callable[[], float], theirs: Callable[[], float]) -> list[object]:
    """A row: the milliseconds of both ways, and how much longer the other one takes."""
    mine = ours()
    try:
        yours = theirs()
    except Exception as error:
        return [name, other, mine, f"not measured: {type(error).__name__}: {str(error)[:60]}", ""]
    return [name, other, mine, yours, f"{100 * (yours / mine - 1):+.1f} %"]


def few_rows(runner: TalkerRunner) -> list[list[object]]:
    """The vector kernels for one or two rows against the matrix kernels that larger batches take."""
    matrix = runner.step
    if runner.device.type == "cuda":
        from python_backends.talker.kernels.triton_kernels import KernelChoices, TritonKernels

        kernels = TritonKernels(runner.weights, runner.shape, KernelChoices(few_rows=0))
        matrix = TalkerStep(runner.shape, runner.weights, kernels, runner.buffers)
    return [
        compared(
            f"Talker's vector kernels, a step of {batch}",
            "its matrix kernels",
            lambda batch=batch: step_times(runner, runner.step, batch, CONTEXT)[0],
            lambda batch=batch: step_times(runner, matrix, batch, CONTEXT)[0],
        )
        for batch in (1, 2)
    ]


def prefill_attention(runner: TalkerRunner) -> list[list[object]]:
    """One layer's attention of whole prompts against FlashAttention over the same, gathered out of the caches."""
    shape, device, rows = runner.shape.backbone, runner.device, PROMPTS * PROMPT_ROWS
    q = torch.randn(rows, shape.heads, shape.head_dim, device=device).to(runner.weights.codec_head.dtype)
    k_cache, v_cache = runner.buffers.k_cache[0], runner.buffers.v_cache[0]
    slots, counts = np.arange(PROMPTS), np.full(PROMPTS, PROMPT_ROWS)
    layout = PrefillLayout(slots, np.zeros(PROMPTS, np.int64), counts, device)
    ends = torch.arange(0, rows + 1, PROMPT_ROWS, device=device, dtype=torch.int32)
    groups = shape.heads // shape.kv_heads
    found: dict[str, torch.Tensor] = {}

    def ours() -> None:
        found["ours"] = runner.kernels.prefill_attention(q, k_cache, v_cache, layout)

    def flash() -> None:
        from torch.nn.attention.varlen import varlen_attn

        k, v = (cache[:PROMPTS, :PROMPT_ROWS].flatten(0, 1) for cache in (k_cache, v_cache))
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        causal = {"window_size": (-1, 0)} if "window_size" in varlen_attn.__kwdefaults__ else {"is_causal": True}
        found["flash"] = varlen_attn(q, k, v, ends, ends, PROMPT_ROWS, PROMPT_ROWS, **causal)

    def flash_grouped() -> None:
        from vllm.vllm_flash_attn import flash_attn_varlen_func

        k, v = (cache[:PROMPTS, :PROMPT_ROWS].flatten(0, 1) for cache in (k_cache, v_cache))
        found["flash"] = flash_attn_varlen_func(q, k, v, PROMPT_ROWS, ends, PROMPT_ROWS, cu_seqlens_k=ends, causal=True)

    def checked(act: Callable[[], None]) -> float:
        ms = milliseconds(act, device)
        difference = (found["ours"].view(rows, -1).float() - found["flash"].view(rows, -1).float()).abs().max()
        if not difference < 0.05:
            raise ValueError(f"differs by {difference:.3f}")
        return ms

    k_cache.normal_()
    v_cache.normal_()
    name = f"Talker's prefill attention, a layer of {PROMPTS} × {PROMPT_ROWS} rows"
    return [
        compared(
            name, "torch's varlen_attn, keys repeated", lambda: milliseconds(ours, device), lambda: checked(flash)
        ),
        compared(name, "vLLM's flash_attn_varlen", lambda: milliseconds(ours, device), lambda: checked(flash_grouped)),
    ]


def plain(ops: Ops, names: tuple[str, ...]) -> Ops:
    """`ops` with the operations `names` in plain torch."""
    own = {name: getattr(Ops, name) for name in names}
    made = type("PartlyPlain", (type(ops),), own)()
    made.__dict__.update(ops.__dict__)
    return made


def code2wav(config: Code2WavConfig, device: str) -> list[list[object]]:
    """Whole steps with and without the small kernels."""
    ops = default_ops(device)
    ways = [(f"Code2Wav's {name} kernel", "plain torch", plain(ops, (name,))) for name in SMALL]
    ways.append(("Code2Wav's small kernels, all four", "plain torch", plain(ops, SMALL)))
    ways.append(("All of Code2Wav's kernels", "plain torch", Ops()))
    rows = []
    model, state = make_model(config, 64 if device.startswith("cuda") else 2, device, ops)
    for streams, frames in ((1, 1), (state.slots, 25)):
        model.ops = ops
        ours = step_ms(model, state, streams, frames, device)
        for name, other, their_ops in ways:
            model.ops = their_ops
            rows.append(
                compared(
                    f"{name}, {streams} × {frames} frames",
                    other,
                    lambda ours=ours: ours,
                    lambda streams=streams, frames=frames: step_ms(model, state, streams, frames, device),
                )
            )
    return rows


def main() -> int:
    args = parser(__doc__, ("few", "prefill", "code2wav")).parse_args()
    report, cuda = Report(args), args.device.startswith("cuda")
    dtype = "bfloat16" if cuda else "float32"
    options = TalkerOptions(args.device, dtype, 16, 2048, load_format="dummy", cuda_graphs=False)
    header = ("what", "against", "ours, ms", "theirs, ms", "difference")
    with torch.inference_mode():
        if {"few", "prefill"} & set(args.parts):
            runner = TalkerRunner(config_file(args.toy), options)
            start_all(runner)
            report.part("few", "One or two rows", header, lambda: few_rows(runner))
            report.part("prefill", "Prefill attention", header, lambda: prefill_attention(runner))
        config = TOY_CODE2WAV if args.toy else Code2WavConfig()
        report.part("code2wav", "Code2Wav", header, lambda: code2wav(config, args.device))
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
