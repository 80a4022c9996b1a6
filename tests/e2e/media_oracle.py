"""What transformers answers to a prompt with media: text, codes and sound, in float32 and greedy."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoProcessor, GenerationConfig, Qwen3OmniMoeForConditionalGeneration

from tests import oracle
from tests.oracle import OracleAnswer, kept_answer, spoken


class MediaOracle:
    """Answers prompts with media with `transformers`."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._model: Qwen3OmniMoeForConditionalGeneration | None = None

    def answer(self, messages: list[dict], given: dict, max_tokens: int, max_frames: int) -> OracleAnswer:
        """`given`: `audio`, `images`, `videos`, `fps` and `use_audio_in_video` as the checkpoint's processor takes
        them, in place of what the parts of `messages` hold.
        """
        key = f"{max_tokens}-{max_frames}-{_key(messages, given)}"
        return kept_answer(self._checkpoint, key, lambda: self._generate(messages, given, max_tokens, max_frames))

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
        text = tokenizer.decode(ids, skip_special_tokens=True)
        codes, wave = spoken(model, inputs, ids, self._end_ids, max_frames, "Ethan")
        return OracleAnswer(prompt_ids, ids, text, stopped, codes, wave)


def _key(messages: list[dict], given: dict) -> str:
    # Of media their kind alone: the files hold the time at which they were made, and `given` is what they decode to.
    turns = [
        (turn["role"], [(part["type"], part.get("text")) for part in turn["content"]])
        if isinstance(turn["content"], list)
        else turn
        for turn in messages
    ]
    seen = hashlib.sha256(json.dumps([turns, transformers.__version__]).encode())
    for source in (__file__, oracle.__file__):
        seen.update(Path(source).read_bytes())
    for name, value in sorted(given.items()):
        seen.update(name.encode())
        for item in value if isinstance(value, list) else [value]:
            seen.update(np.asarray(item).tobytes())
    return seen.hexdigest()[:24]
