"""The prompts that the server and transformers must answer alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """A greedy request: at most `max_tokens` text ids and `max_frames` codec frames."""

    text: str
    max_tokens: int = 200
    max_frames: int = 160
    system: str | None = None

    @property
    def messages(self) -> list[dict]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.text}]

    def request(self, **fields) -> dict:
        sampling = {
            "thinker": {"temperature": 0.0, "max_tokens": self.max_tokens},
            "talker": {"temperature": 0.0, "max_tokens": self.max_frames},
        }
        return {"messages": self.messages, "sampling": sampling, **fields}


PROMPTS = {
    "greeting": Prompt("Hello! Who are you?"),
    "one word": Prompt("Do you speak Chinese?"),
    "one token": Prompt("Hush."),
    "chinese": Prompt("你好，请介绍一下你自己。"),
    "empty": Prompt("No coffee, please."),
    "cut": Prompt("Describe a cat.", max_tokens=12),
    "system prompt": Prompt("What is the capital of France?", system="You answer in one sentence."),
    "long": Prompt("Name three colours."),
}
