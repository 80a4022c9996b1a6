"""The prompts that the server and transformers must answer alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """A greedy request: at most `max_tokens` text ids and `max_frames` codec frames."""

    text: str
    max_tokens: int = 200
    max_frames: int = 40
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
    "one token": Prompt("Hush."),
    "few words": Prompt("Sing me a song."),
    "chinese": Prompt("天气怎么样？"),
    "empty": Prompt("No coffee, please."),
    "cut": Prompt("Say yes.", max_tokens=12),
    "system prompt": Prompt("What is the capital of France?", system="You answer in one sentence."),
    "long": Prompt("What is your name?"),
}
