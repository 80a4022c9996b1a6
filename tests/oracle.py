"""The oracle: transformers' own Qwen3-Omni on the same checkpoint, float32, greedy."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoTokenizer, GenerationConfig, Qwen3OmniMoeForConditionalGeneration


@dataclass(frozen=True)
class OracleAnswer:
    """`ids`: answer ids without the end token; `codes`: [frames, 16]; `wave`: one unchunked code2wav forward."""

    prompt_ids: list[int]
    ids: list[int]
    text: str
    stopped: bool
    codes: np.ndarray
    wave: np.ndarray


def kept_answer(checkpoint: Path, key: str, make: Callable[[], OracleAnswer]) -> OracleAnswer:
    """An answer takes seconds, so it is kept beside the checkpoint under `key`, which holds all that it depends on."""
    kept = checkpoint.with_name(f"{checkpoint.name}-oracle") / f"{key}.npz"
    if not kept.is_file():
        answer = make()
        kept.parent.mkdir(exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}.npz")
        np.savez(partial, **vars(answer))
        partial.rename(kept)
    with np.load(kept) as arrays:
        return OracleAnswer(
            prompt_ids=arrays["prompt_ids"].tolist(),
            ids=arrays["ids"].tolist(),
            text=str(arrays["text"]),
            stopped=bool(arrays["stopped"]),
            codes=arrays["codes"],
            wave=arrays["wave"],
        )


def spoken(
    model: Qwen3OmniMoeForConditionalGeneration,
    inputs: dict,
    ids: list[int],
    end_ids: list[int],
    max_frames: int,
    speaker: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Codes [frames, 16] and the wave of the answer `ids`, decoded in one unchunked forward.

    `transformers` leaves the last id before a cut unspoken, and its last sampled frame without residual codes, so both
    stages run one token further than the limits of the server.
    """
    captured: list[torch.Tensor] = []

    def decode_whole(codes: torch.Tensor, **_) -> torch.Tensor:
        captured.append(codes)
        return model.code2wav(codes)

    original, model.code2wav.chunked_decode = model.code2wav.chunked_decode, decode_whole
    try:
        _, wave = model.generate(
            **inputs,
            speaker=speaker,
            thinker_max_new_tokens=len(ids) + 1,
            thinker_eos_token_id=end_ids,
            thinker_do_sample=False,
            talker_do_sample=False,
            talker_max_new_tokens=max_frames + 1,
        )
    finally:
        model.code2wav.chunked_decode = original
    return captured[0][0].T.numpy(), wave.reshape(-1).float().numpy()


class Oracle:
    """Answers text prompts with `transformers`."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._model: Qwen3OmniMoeForConditionalGeneration | None = None

    def answer(
        self, messages: list[dict], max_tokens: int = 2048, max_frames: int = 4096, speaker: str = "Ethan"
    ) -> OracleAnswer:
        """Greedy answer."""
        question = [messages, max_tokens, max_frames, speaker, transformers.__version__, Path(__file__).read_text()]
        key = hashlib.sha256(json.dumps(question).encode()).hexdigest()[:24]
        return kept_answer(self._checkpoint, key, lambda: self._generate(messages, max_tokens, max_frames, speaker))

    def _load(self) -> Qwen3OmniMoeForConditionalGeneration:
        if self._model is None:
            self._model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
                self._checkpoint, dtype=torch.float32
            ).eval()
            self.tokenizer = AutoTokenizer.from_pretrained(self._checkpoint)
            self.end_ids = GenerationConfig.from_pretrained(self._checkpoint).eos_token_id
        return self._model

    @torch.no_grad()
    def _generate(self, messages: list[dict], max_tokens: int, max_frames: int, speaker: str) -> OracleAnswer:
        model = self._load()
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt_ids = self.tokenizer(prompt, return_tensors="pt").input_ids
        n = prompt_ids.shape[1]
        ids = model.thinker.generate(
            input_ids=prompt_ids, max_new_tokens=max_tokens, do_sample=False, eos_token_id=self.end_ids
        )[0, n:].tolist()
        stopped = ids[-1] in self.end_ids
        ids = ids[:-1] if stopped else ids
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        if not ids:  # nothing to say: the published code cannot run its Talker on an empty answer
            return OracleAnswer(
                prompt_ids[0].tolist(), ids, text, stopped, np.empty((0, 16), np.int64), np.empty(0, np.float32)
            )
        codes, wave = spoken(model, {"input_ids": prompt_ids}, ids, self.end_ids, max_frames, speaker)
        return OracleAnswer(prompt_ids[0].tolist(), ids, text, stopped, codes, wave)
