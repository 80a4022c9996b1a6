"""From a conversation to prompt ids: the checkpoint's chat template and its tokenizer."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

from python_backends.config.errors import InvalidRequest
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

        self.variables = _variables(self._template) - set(tokenizer.special_tokens_map)

    def text(self, conversation: Conversation, variables: dict[str, Any] | None = None) -> str:
        """The prompt, one placeholder for each audio, image and video, up to and with the assistant's header.

        `variables`: of the template, besides the messages. Raises InvalidRequest for one that it does not read.
        """
        for name, value in (variables or {}).items():
            path = f"chat_template_kwargs.{name[:64]}"
            if name not in self.variables:
                known = ", ".join(sorted(self.variables)) or "none"
                raise InvalidRequest(path, f"unknown to this checkpoint's chat template; allowed: {known}")
            if isinstance(value, str) and any(token in value for token in self.control_tokens):
                raise InvalidRequest(path, "may not contain a control token")
        return self._tokenizer.apply_chat_template(
            conversation.messages,
            chat_template=self._template,
            tokenize=False,
            add_generation_prompt=True,
            **(variables or {}),
        )

    def ids(self, text: str) -> list[int]:
        # `encode` would hold Python's lock for as long as it takes, a batch of one does not.
        return self._tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


# What the server itself gives a template, and the functions that transformers adds.
_NOT_FOR_CLIENTS = {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}


def _variables(template: str) -> set[str]:
    """What a chat template reads besides the messages."""
    from jinja2 import Environment, meta

    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    # transformers' own block around the assistant's words; only the names inside matter.
    source = re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", template)
    return meta.find_undeclared_variables(environment.parse(source)) - _NOT_FOR_CLIENTS


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
