"""Text deltas: whole characters only, and together what decoding at once gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from python_backends.thinker.detokenizer import Detokenizer, TokenBytes

TEXTS = ["plain", "naïve café", "你好,世界", "🙂🙃👩‍👩‍👧", "\n\t  spaces  ", "mixed 你 a 🙂 b"]


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint):
    return AutoTokenizer.from_pretrained(tiny_checkpoint)


@pytest.fixture(scope="module")
def token_bytes(tokenizer):
    return TokenBytes(tokenizer)


def feed(token_bytes, ids, size=1):
    detokenizer = Detokenizer(token_bytes)
    pieces = [ids[at : at + size] for at in range(0, len(ids), size)]
    return [detokenizer.feed(piece, last=at == len(pieces) - 1) for at, piece in enumerate(pieces)]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 3])
def test_whole_characters(tokenizer, token_bytes, text, size):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    deltas = feed(token_bytes, ids, size)
    assert "".join(deltas) == text
    assert all("\ufffd" not in delta for delta in deltas)


def test_any_ids_equal_decode(tokenizer, token_bytes):
    top = max(tokenizer.added_tokens_decoder) + 3

    # Ids below 256 are mostly single bytes: these make broken and cut UTF-8.
    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.one_of(st.integers(0, 255), st.integers(0, top)), min_size=1, max_size=40))
    def check(ids):
        assert "".join(feed(token_bytes, ids)) == tokenizer.decode(ids, skip_special_tokens=True)

    check()


def test_special_ids_are_silent(tokenizer, token_bytes):
    special = [at for at, token in tokenizer.added_tokens_decoder.items() if token.special]
    assert special
    assert feed(token_bytes, special) == [""] * len(special)


def test_cut_character_becomes_a_replacement_at_the_end(tokenizer, token_bytes):
    ids = [at for char in "你".encode() for at in _single_byte_id(tokenizer, char)]
    assert feed(token_bytes, ids[:2]) == ["", "\ufffd"]


def _single_byte_id(tokenizer, byte: int) -> list[int]:
    token_bytes = TokenBytes(tokenizer)
    return [next(at for at in range(256) if token_bytes[at] == bytes([byte]))]


def test_another_kind_of_tokenizer_is_refused():
    class Other:
        backend_tokenizer = None

    with pytest.raises(ValueError, match="byte-level"):
        TokenBytes(Other())
