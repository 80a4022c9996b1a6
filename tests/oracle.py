"""The oracle: transformers' own Qwen3-Omni on the same checkpoint, float32, greedy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration


@dataclass(frozen=True)
class OracleAnswer:
    """`ids`: answer ids without the end token; `codes`: [frames, 16]; `wave`: one unchunked code2wav forward."""

    prompt_ids: list[int]
    ids: list[int]
    text: str
    stopped: bool
    codes: np.ndarray
    wave: np.ndarray


class Oracle:
    """Answers text prompts with `transformers`."""

    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self.model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.end_ids = self.model.thinker.generation_config.eos_token_id or self.model.generation_config.eos_token_id
        if isinstance(self.end_ids, int):
            self.end_ids = [self.end_ids]

    @torch.no_grad()
    def answer(
        self, messages: list[dict], max_tokens: int = 2048, max_frames: int = 4096, speaker: str = "Ethan"
    ) -> OracleAnswer:
        """Greedy answer. `transformers` leaves the last id before a cut unspoken, and its last sampled frame without
        residual codes, so both stages run one token further than the limits of the server.
        """
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt_ids = self.tokenizer(prompt, return_tensors="pt").input_ids
        n = prompt_ids.shape[1]
        ids = self.model.thinker.generate(
            input_ids=prompt_ids, max_new_tokens=max_tokens, do_sample=False, eos_token_id=self.end_ids
        )[0, n:].tolist()
        stopped = ids[-1] in self.end_ids
        ids = ids[:-1] if stopped else ids
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        if not ids:  # nothing to say: the published code cannot run its Talker on an empty answer
            return OracleAnswer(
                prompt_ids[0].tolist(), ids, text, stopped, np.empty((0, 16), np.int64), np.empty(0, np.float32)
            )
        captured: list[torch.Tensor] = []

        def decode_whole(codes: torch.Tensor, **_) -> torch.Tensor:
            captured.append(codes)
            return self.model.code2wav(codes)

        original, self.model.code2wav.chunked_decode = self.model.code2wav.chunked_decode, decode_whole
        try:
            _, wave = self.model.generate(
                input_ids=prompt_ids,
                speaker=speaker,
                thinker_max_new_tokens=len(ids) + 1,
                thinker_eos_token_id=self.end_ids,
                thinker_do_sample=False,
                talker_do_sample=False,
                talker_max_new_tokens=max_frames + 1,
            )
        finally:
            self.model.code2wav.chunked_decode = original
        codes = captured[0][0].T.numpy()
        return OracleAnswer(prompt_ids[0].tolist(), ids, text, stopped, codes, wave.reshape(-1).float().numpy())
