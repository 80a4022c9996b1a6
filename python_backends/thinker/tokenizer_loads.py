"""Keeps a start of vLLM from loading and copying one tokenizer again and again.

With media inputs vLLM makes the checkpoint's processor three times, each time `transformers` reads the tokenizer anew,
and both copy it with every argument that they keep: 23 s of CPU for a vocabulary of 150 thousand, 4 s with this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def one_tokenizer() -> Iterator[None]:
    """Within it `AutoTokenizer` reads each tokenizer once, and copies of a tokenizer are the tokenizer itself.

    Sharing is safe for what the Thinker does: fast tokenizers are Rust objects that encode from several threads, and
    nothing here changes one's padding, truncation or vocabulary.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    read, original = {}, AutoTokenizer.__dict__["from_pretrained"]

    def from_pretrained(name: Any, *args: Any, **kwargs: Any) -> Any:
        # Other arguments say where the same files are found, or belong to the processor.
        key = (str(name), kwargs.get("subfolder", ""), kwargs.get("revision"))
        if key not in read:
            read[key] = original.__get__(None, AutoTokenizer)(name, *args, **kwargs)
        return read[key]

    AutoTokenizer.from_pretrained = staticmethod(from_pretrained)
    PreTrainedTokenizerBase.__deepcopy__ = lambda self, memo: self
    try:
        yield
    finally:
        AutoTokenizer.from_pretrained = original
        del PreTrainedTokenizerBase.__deepcopy__
