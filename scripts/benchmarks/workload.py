"""The workload `seedtts_like`: prompts of 128 ids, answers of forced lengths like those of Seed-TTS' English set."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

LEVELS = {1: 10, 16: 160, 32: 320, 64: 640}  # concurrent requests: requests
WARM_UPS = 5
PROMPT_IDS = 128
TEMPLATE_IDS = 8  # what the chat template adds to a lone user message
FRAMES_A_SECOND = 12.5
SERIES = 100_000  # more than any load has requests

# Each of these is one id of Qwen's vocabulary when a space stands before it.
WORDS = Path(__file__).with_name("words.txt").read_text().split()


@dataclass(frozen=True)
class Task:
    """One request of the workload: its prompt, and how long its answer is made to be. `seed`: of its sampling."""

    index: int
    seed: int
    prompt: str
    text_ids: int
    frames: int

    @property
    def audio_s(self) -> float:
        return self.frames / FRAMES_A_SECOND


def task(index: int, scale: float = 1.0, series: int = 0) -> Task:
    """Request `index`: t = 30 + (7 index mod 31) text ids and round(3.2 t) codec frames.

    `scale` shortens answers for slow machines; only 1 is the published workload. Prompts of one series and of different
    ones differ from their first word on: each load on a server has a series of its own, so that no prefix cache can
    hide a prefill.
    """
    text_ids = max(2, round((30 + 7 * index % 31) * scale))
    seed = SERIES * series + index
    words = random.Random(seed).choices(WORDS, k=PROMPT_IDS - TEMPLATE_IDS)
    return Task(index, seed, " " + " ".join(words), text_ids, round(3.2 * text_ids))


def tasks(count: int, scale: float = 1.0, series: int = 0) -> list[Task]:
    return [task(index, scale, series) for index in range(count)]


def request_body(task: Task) -> dict:
    """The task as a request of the `qwen3_omni` model, sampled with the published defaults."""
    return {
        "messages": [{"role": "user", "content": task.prompt}],
        "modalities": ["text", "audio"],
        "seed": task.seed,
        "audio_format": "int16",
        "sampling": {
            "thinker": {"max_tokens": task.text_ids, "ignore_eos": True},
            "talker": {"max_tokens": task.frames, "ignore_eos": True},
        },
    }


def perf_analyzer_input(tasks: list[Task]) -> str:
    """The contents of perf_analyzer's `--input-data` file, one step a task."""
    return json.dumps({"data": [{"request": [json.dumps(request_body(task))]} for task in tasks]})
