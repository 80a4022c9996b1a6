"""Answers of transformers' own `generate`, with what a Thinker would have sent for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from python_backends.config.multimodal import MultimodalPrompt
from python_backends.talker.request import TextChunk

IM_START, IM_END, USER, ASSISTANT, SYSTEM, NEWLINE = 151644, 151645, 872, 77091, 8948, 198
MEDIA_IDS = (151675, 151655, 151656)


@dataclass(frozen=True)
class Answer:
    """`chunk`: prompt, media and all answer ids. `codes` int32 [frames, groups]: what transformers speaks."""

    chunk: TextChunk
    codes: np.ndarray


def chat(*turns: tuple[int, list[int]]) -> list[int]:
    """Prompt ids of (role id, content) turns, then the assistant header."""
    ids: list[int] = []
    for role, content in turns:
        ids += [IM_START, role, NEWLINE, *content, IM_END, NEWLINE]
    return [*ids, IM_START, ASSISTANT, NEWLINE]


def speak(model, prompt: list[int], text: int, frames: int, speaker: str = "Ethan", **inputs) -> Answer:
    """Greedy answer to `prompt` with `text` answer ids and at most `frames` frames.

    The Thinker is stopped by length; its last id is never fed back, so transformers does not speak it, and one more
    is drawn here. Likewise the Talker's last draw has no residual codes.
    """
    caught = {}
    thinker_generate, decode = model.thinker.generate, model.code2wav.chunked_decode

    def catch_thinker(*arguments, **keywords):
        caught["thinker"] = thinker_generate(*arguments, **keywords)
        return caught["thinker"]

    def catch_codes(codes, **_):
        caught["codes"] = codes
        return torch.zeros(1, 1, 1)

    model.thinker.generate, model.code2wav.chunked_decode = catch_thinker, catch_codes
    try:
        model.generate(
            input_ids=torch.tensor([prompt]),
            speaker=speaker,
            thinker_max_new_tokens=text + 1,
            thinker_eos_token_id=None,
            thinker_do_sample=False,
            talker_do_sample=False,
            talker_max_new_tokens=frames + 1,
            talker_repetition_penalty=1.05,
            **inputs,
        )
    finally:
        model.thinker.generate, model.code2wav.chunked_decode = thinker_generate, decode
    result = caught["thinker"]
    prompt_ids = np.array(prompt, dtype=np.int32)
    positions = np.flatnonzero(np.isin(prompt_ids, MEDIA_IDS))
    media = None
    if len(positions):
        hidden = result.hidden_states[0][model.config.talker_config.accept_hidden_layer][0]
        lengths = inputs.get("feature_attention_mask")
        media = MultimodalPrompt(
            positions=positions,
            hidden_rows=hidden[positions].numpy(),
            image_grid_thw=_numpy(inputs.get("image_grid_thw")),
            video_grid_thw=_numpy(inputs.get("video_grid_thw")),
            audio_seqlens=None if lengths is None else lengths.sum(1).numpy(),
            video_second_per_grid=_numpy(inputs.get("video_second_per_grid")),
        )
    ids = result.sequences[0, len(prompt) : len(prompt) + text].numpy().astype(np.int32)
    codes = caught["codes"][0].T.numpy().astype(np.int32)
    return Answer(TextChunk(ids, True, prompt_ids, media), codes)


def _numpy(tensor: torch.Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.numpy()
