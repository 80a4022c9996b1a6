"""`transformers`' own Thinker on the same checkpoint: float32, greedy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, GenerationConfig, Qwen3OmniMoeThinkerForConditionalGeneration


@dataclass(frozen=True)
class Expected:
    """`ids` without the end-of-text id."""

    prompt_ids: list[int]
    ids: list[int]
    text: str
    stopped: bool


class ThinkerOracle:
    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self.model = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
        end_ids = GenerationConfig.from_pretrained(checkpoint).eos_token_id
        self.end_ids = [end_ids] if isinstance(end_ids, int) else end_ids

    @torch.no_grad()
    def text(self, messages: list[dict], max_tokens: int, **generate) -> Expected:
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self._generate(dict(self.tokenizer(prompt, return_tensors="pt")), max_tokens, **generate)

    def _generate(self, inputs: dict, max_tokens: int, **generate) -> Expected:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        length = inputs["input_ids"].shape[1]
        ids = self.model.generate(
            **inputs, max_new_tokens=max_tokens, do_sample=False, eos_token_id=self.end_ids, **generate
        )[0, length:].tolist()
        stopped = ids[-1] in self.end_ids
        ids = ids[:-1] if stopped else ids
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Expected(inputs["input_ids"][0].tolist(), ids, text, stopped)
