"""`transformers`' own Thinker on the same checkpoint: float32, greedy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoProcessor,
    GenerationConfig,
    Qwen3OmniMoeConfig,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)


@dataclass(frozen=True)
class Expected:
    """`ids` without the end-of-text id. `rows` float32 [m, hidden] at `positions`, the media of the prompt."""

    prompt_ids: list[int]
    ids: list[int]
    text: str
    stopped: bool
    positions: np.ndarray
    rows: np.ndarray
    inputs: dict


class ThinkerOracle:
    def __init__(self, checkpoint: Path) -> None:
        self.processor = AutoProcessor.from_pretrained(checkpoint)
        self.tokenizer = self.processor.tokenizer
        self.model = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
        end_ids = GenerationConfig.from_pretrained(checkpoint).eos_token_id
        self.end_ids = [end_ids] if isinstance(end_ids, int) else end_ids
        config = Qwen3OmniMoeConfig.from_pretrained(checkpoint)
        thinker = config.thinker_config
        self.layer = config.talker_config.accept_hidden_layer
        self.media_ids = [thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id]

    @torch.no_grad()
    def text(self, messages: list[dict], max_tokens: int, **generate) -> Expected:
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self._generate(dict(self.tokenizer(prompt, return_tensors="pt")), max_tokens, **generate)

    @torch.no_grad()
    def media(
        self, messages: list[dict], max_tokens: int, use_audio_in_video: bool = False, second_per_grid=None, **media
    ):
        """`media`: `audio`, `images`, `videos` and `fps` as the checkpoint's processor takes them."""
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        inputs = self.processor(text=prompt, return_tensors="pt", use_audio_in_video=use_audio_in_video, **media)
        if second_per_grid is not None:
            inputs["video_second_per_grid"] = torch.tensor(second_per_grid)
        return self._generate(dict(inputs), max_tokens, use_audio_in_video=use_audio_in_video)

    def _generate(self, inputs: dict, max_tokens: int, **generate) -> Expected:
        prompt = inputs["input_ids"]
        inputs["attention_mask"] = torch.ones_like(prompt)
        answer = self.model.generate(
            **inputs,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=self.end_ids,
            output_hidden_states=True,
            return_dict_in_generate=True,
            **generate,
        )
        ids = answer.sequences[0, prompt.shape[1] :].tolist()
        stopped = ids[-1] in self.end_ids
        ids = ids[:-1] if stopped else ids
        positions = np.flatnonzero(np.isin(prompt[0].numpy(), self.media_ids))
        rows = answer.hidden_states[0][self.layer][0].numpy()[positions]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Expected(prompt[0].tolist(), ids, text, stopped, positions, rows, inputs)
