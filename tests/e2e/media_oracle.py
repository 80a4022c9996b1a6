"""What transformers answers to a prompt with media: text, codes and sound, in float32 and greedy."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoProcessor, GenerationConfig, Qwen3OmniMoeForConditionalGeneration

from tests.oracle import OracleAnswer


class MediaOracle:
    """Answers are kept beside the checkpoint, keyed by all that they depend on: each takes seconds."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._model: Qwen3OmniMoeForConditionalGeneration | None = None

    def answer(self, messages: list[dict], given: dict, max_tokens: int, max_frames: int) -> OracleAnswer:
        """`given`: `audio`, `images`, `videos`, `fps` and `use_audio_in_video` as the checkpoint's processor takes
        them, in place of what the parts of `messages` hold.
        """
        kept = self._checkpoint.with_name(f"{self._checkpoint.name}-oracle") / f"{_key(messages, given)}.npz"
        kept = kept.with_name(f"{max_tokens}-{max_frames}-{kept.name}")
        if not kept.is_file():
            answer = self._generate(messages, given, max_tokens, max_frames)
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

    def _load(self) -> Qwen3OmniMoeForConditionalGeneration:
        if self._model is None:
            model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(self._checkpoint, dtype=torch.float32).eval()
            # The published Talker reads the audio window from its own config, which does not hold it.
            model.talker.config.audio_config = model.config.thinker_config.audio_config
            self._model = model
            self._processor = AutoProcessor.from_pretrained(self._checkpoint)
            self._end_ids = GenerationConfig.from_pretrained(self._checkpoint).eos_token_id
        return self._model

    @torch.no_grad()
    def _generate(self, messages: list[dict], given: dict, max_tokens: int, max_frames: int) -> OracleAnswer:
        """`transformers` leaves the last id before a cut unspoken, and its last sampled frame without residual codes,
        so both stages run one token further than the limits of the server.
        """
        model = self._load()
        tokenizer = self._processor.tokenizer
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        inputs = dict(self._processor(text=prompt, return_tensors="pt", **given))
        inputs["use_audio_in_video"] = given.get("use_audio_in_video", False)
        prompt_ids = inputs["input_ids"][0].tolist()
        greedy = {"do_sample": False, "eos_token_id": self._end_ids}
        ids = model.thinker.generate(**inputs, max_new_tokens=max_tokens, **greedy)[0, len(prompt_ids) :].tolist()
        stopped = ids[-1] in self._end_ids
        ids = ids[:-1] if stopped else ids
        codes: list[torch.Tensor] = []

        def decode_whole(given_codes: torch.Tensor, **_) -> torch.Tensor:
            codes.append(given_codes)
            return model.code2wav(given_codes)

        original, model.code2wav.chunked_decode = model.code2wav.chunked_decode, decode_whole
        try:
            _, wave = model.generate(
                **inputs,
                speaker="Ethan",
                thinker_max_new_tokens=len(ids) + 1,
                thinker_eos_token_id=self._end_ids,
                thinker_do_sample=False,
                talker_do_sample=False,
                talker_max_new_tokens=max_frames + 1,
            )
        finally:
            model.code2wav.chunked_decode = original
        text = tokenizer.decode(ids, skip_special_tokens=True)
        sound = wave.reshape(-1).float().numpy()
        return OracleAnswer(prompt_ids, ids, text, stopped, codes[0][0].T.numpy(), sound)


def _key(messages: list[dict], given: dict) -> str:
    # Of media their kind alone: the files hold the time at which they were made, and `given` is what they decode to.
    turns = [
        (turn["role"], [(part["type"], part.get("text")) for part in turn["content"]])
        if isinstance(turn["content"], list)
        else turn
        for turn in messages
    ]
    seen = hashlib.sha256(json.dumps([turns, transformers.__version__]).encode())
    seen.update(Path(__file__).read_bytes())
    for name, value in sorted(given.items()):
        seen.update(name.encode())
        for item in value if isinstance(value, list) else [value]:
            seen.update(np.asarray(item).tobytes())
    return seen.hexdigest()[:24]
