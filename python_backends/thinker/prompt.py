"""From a conversation to prompt ids: the checkpoint's chat template and its tokenizer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

from python_backends.thinker.messages import Conversation


class PromptBuilder:
    """Renders and tokenizes. Thread-safe: neither the template nor the Rust tokenizer is changed by a call.

    Raises ValueError when the checkpoint has no chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: str) -> None:
        self._tokenizer = tokenizer
        self._template = tokenizer.chat_template or _processor_template(model)
        if not self._template:
            raise ValueError(f"{model} has no chat template")
        self.control_tokens = tuple(
            str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special
        )

    def text(self, conversation: Conversation) -> str:
        """The prompt, one placeholder for each audio, image and video, up to and with the assistant's header."""
        return self._tokenizer.apply_chat_template(
            conversation.messages, chat_template=self._template, tokenize=False, add_generation_prompt=True
        )

    def ids(self, text: str) -> list[int]:
        # `encode` would hold Python's lock for as long as it takes, a batch of one does not.
        return self._tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _processor_template(model: str) -> Any:
    """The template that a checkpoint keeps beside its processor rather than in its tokenizer."""
    from transformers.utils import cached_file

    for name in ("chat_template.jinja", "chat_template.json"):
        path = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
        if path is not None:
            with open(path, encoding="utf-8") as file:
                body = file.read()
            return body if name.endswith("jinja") else json.loads(body)["chat_template"]
    return None
