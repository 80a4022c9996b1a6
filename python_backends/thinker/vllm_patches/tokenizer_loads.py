"""Keeps a start of vLLM from loading and copying one tokenizer again and again.

With media inputs vLLM makes the checkpoint's processor three times, each time `transformers` reads the tokenizer anew,
and both copy it with every argument that they keep: with a vocabulary of 150 thousand 27 of 47 s of CPU.

Around: vLLM 0.32 with transformers 5.19. No longer needed when a start with media takes no longer without it.
"""

from __future__ import annotations

from typing import Any


class OneTokenizer:
    """A context: within it `AutoTokenizer` reads each tokenizer once, and copies of one are the tokenizer itself.

    Sharing is safe for what the Thinker does: fast tokenizers are Rust objects that encode from several threads, and
    nothing here changes one's padding, truncation or vocabulary.
    """

    def __init__(self) -> None:
        self._read: dict[tuple, Any] = {}

    def __enter__(self) -> None:
        from transformers import AutoTokenizer, PreTrainedTokenizerBase

        self._original = AutoTokenizer.__dict__["from_pretrained"]
        AutoTokenizer.from_pretrained = staticmethod(self._from_pretrained)
        PreTrainedTokenizerBase.__deepcopy__ = lambda tokenizer, memo: tokenizer

    def __exit__(self, *exc: object) -> None:
        from transformers import AutoTokenizer, PreTrainedTokenizerBase

        AutoTokenizer.from_pretrained = self._original
        del PreTrainedTokenizerBase.__deepcopy__

    def _from_pretrained(self, name: Any, *args: Any, **kwargs: Any) -> Any:
        from transformers import AutoTokenizer

        # Other arguments say where the same files are found, or belong to the processor.
        key = (str(name), kwargs.get("subfolder", ""), kwargs.get("revision"))
        if key not in self._read:
            self._read[key] = self._original.__get__(None, AutoTokenizer)(name, *args, **kwargs)
        return self._read[key]
