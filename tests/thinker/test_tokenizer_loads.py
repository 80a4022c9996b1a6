"""One tokenizer for all of a start."""

from __future__ import annotations

import copy
from pathlib import Path

from transformers import AutoTokenizer

from python_backends.thinker.vllm_patches.tokenizer_loads import OneTokenizer


def test_a_tokenizer_is_read_once_and_copied_by_reference_for_a_while(tiny_checkpoint: Path):
    before = AutoTokenizer.from_pretrained
    with OneTokenizer():
        first = AutoTokenizer.from_pretrained(tiny_checkpoint)
        assert AutoTokenizer.from_pretrained(tiny_checkpoint, tokenizer=first) is first
        assert copy.deepcopy({"tokenizer": first})["tokenizer"] is first
    assert AutoTokenizer.from_pretrained == before
    other = copy.deepcopy(first)
    assert other is not first and other.encode("Hello") == first.encode("Hello")
