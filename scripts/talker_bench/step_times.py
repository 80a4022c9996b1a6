"""The step by batch, split into its parts, and prefill."""

from __future__ import annotations

import numpy as np
import torch

from python_backends.config.sampling import TalkerSampling
from python_backends.talker.kernels.torch_kernels import TorchKernels
from python_backends.talker.model.sampling import RowSettings
from python_backends.talker.model.slots import sampling_columns
from python_backends.talker.prompt import PrefillPart, build_prompt
from python_backends.talker.runner import SlotStart, TalkerRunner
from python_backends.talker.step import TalkerStep
from scripts.talker_bench.timing import eager_milliseconds, milliseconds


def start_all(runner: TalkerRunner) -> None:
    """Give every slot default sampling settings and a seed of its own."""
    starts = []
    for slot in range(runner.buffers.count):
        floats, ints = sampling_columns(TalkerSampling(), 1000 + slot, 0.0)
        starts.append(SlotStart(slot, floats, ints))
    runner.start_slots(starts)


def control_of(runner: TalkerRunner, batch: int, context: int) -> torch.Tensor:
    """Control columns int64 [4, batch] of a step whose rows all have `context` rows before it."""
    rows = np.array([(slot, 1000 + slot, context, 200) for slot in range(batch)], dtype=np.int64)
    return torch.from_numpy(np.ascontiguousarray(rows.T)).to(runner.device)


def parts(
    step: TalkerStep, runner: TalkerRunner, batch: int, context: int, only: str | None = None
) -> dict[str, float]:
    """Milliseconds of the whole step and of its parts, or of one part, each a graph of its own on CUDA."""
    control = control_of(runner, batch, context)
    slots, _, rows, frame = control.unbind(0)
    buffers, shape, device = runner.buffers, runner.shape, runner.device
    hidden = torch.randn(batch, shape.backbone.hidden, device=device).to(runner.weights.codec_head.dtype)
    floats, ints = buffers.floats.index_select(0, slots), buffers.ints.index_select(0, slots)
    settings = RowSettings(floats, ints, frame)
    delta = settings.float("position_delta")
    logits = torch.randn(batch, shape.predictor.vocab, device=device).to(hidden.dtype) * 3
    first_logits = torch.randn(batch, shape.backbone.vocab, device=device).to(hidden.dtype) * 3
    first = (torch.zeros(batch, dtype=torch.int64, device=device), hidden)
    longest = context + 1 if device.type == "cpu" else buffers.context

    def sampling() -> None:
        step.kernels.draw_first(first_logits, settings, buffers.seen, slots)
        for group in range(1, shape.groups):
            step.kernels.draw(logits, settings, group)

    acts = {
        "step": lambda: step(control, longest),
        "backbone": lambda: step.backbone(hidden, slots, rows, delta, longest),
        "predictor_with_sampling": lambda: step.predict(hidden, first, settings),
        "sampling": sampling,
    }
    return {name: milliseconds(act, device) for name, act in acts.items() if only in (None, name)}


def run(runner: TalkerRunner, batches: list[int], context: int) -> dict:
    """Times by batch for the engine's kernels and, on CUDA, for plain torch at the middle batch."""
    start_all(runner)
    table = {}
    for batch in batches:
        table[str(batch)] = {name: round(ms, 3) for name, ms in parts(runner.step, runner, batch, context).items()}
        print(f"batch {batch}: {table[str(batch)]}", flush=True)
    return table


def plain(runner: TalkerRunner, batch: int, context: int) -> dict[str, float]:
    """The same step on plain torch."""
    step = TalkerStep(runner.shape, runner.weights, TorchKernels(runner.weights, runner.shape), runner.buffers)
    return {name: round(ms, 3) for name, ms in parts(step, runner, batch, context).items()}


def bench_prompt(runner: TalkerRunner, rows: int):
    """A text prompt that takes `rows` rows before the first frame."""
    ids = runner.shape.ids
    user = np.arange(rows - 8 - 4) % 1000 + 2000
    prompt = [ids.im_start, ids.user, 198, *user, ids.tts_pad, ids.im_start, ids.assistant, 198]
    return build_prompt(np.array(prompt), None, next(iter(runner.shape.speakers.values())), runner.shape)


def prefill(runner: TalkerRunner, prompts: int, rows: int) -> dict:
    """Wall time for all prompts at once and in the engine's portions, host work included."""
    prompt = bench_prompt(runner, rows)
    if runner.device.type == "cuda":
        runner.capture_prefill(torch.cuda.graph_pool_handle())
    portion = max(1, runner.options.max_prefill_rows // prompt.rows)
    every = [PrefillPart(slot, prompt, 0, prompt.rows) for slot in range(prompts)]

    def in_portions() -> None:
        for start in range(0, prompts, portion):
            runner.prefill(every[start : start + portion])

    return {
        "prompts": prompts,
        "rows": prompt.rows,
        "ms_at_once": round(eager_milliseconds(lambda: runner.prefill(every), runner.device), 2),
        "ms_in_portions": round(eager_milliseconds(in_portions, runner.device), 2),
        "ms_one_portion": round(eager_milliseconds(lambda: runner.prefill(every[:portion]), runner.device), 2),
        "ms_one_prompt": round(eager_milliseconds(lambda: runner.prefill(every[:1]), runner.device), 2),
    }
