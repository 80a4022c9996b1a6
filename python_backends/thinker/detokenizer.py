"""Text from ids as they come, equal to decoding all at once; and their log probabilities as clients get them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# JSON has no infinity.
LOWEST = -9999.0


def _byte_of_char() -> dict[str, int]:
    """GPT-2's byte-level alphabet: printable bytes stand for themselves, the others for code points from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(256 + at): byte for at, byte in enumerate(others)})
    return table


class TokenBytes:
    """The bytes that each id of a byte-level BPE tokenizer stands for; special ids stand for none.

    Raises ValueError for a tokenizer of another kind.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        if type(decoder).__name__ != "ByteLevel":
            raise ValueError(f"the tokenizer must be byte-level BPE, its decoder is {type(decoder).__name__}")
        self._tokenizer = tokenizer.backend_tokenizer
        self._special = {at for at, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._byte_of_char = _byte_of_char()
        # Filled as ids appear: a whole vocabulary of 150 thousand would cost a second at start.
        self._cache: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        found = self._cache.get(token_id)
        if found is None:
            found = self._cache[token_id] = self._look_up(token_id)
        return found

    def _look_up(self, token_id: int) -> bytes:
        token = None if token_id in self._special else self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        try:
            return bytes(self._byte_of_char[char] for char in token)
        except KeyError:
            # An added token in plain text.
            return token.encode("utf-8")


class Detokenizer:
    """Text deltas of one stream. A character whose bytes are not all there yet waits for the next delta."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self.token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def holds_bytes(self) -> bool:
        """Whether a character has begun that is not complete yet."""
        return bool(self._decoder.getstate()[0])

    def feed(self, ids: Iterable[int], last: bool = False) -> str:
        """The text that `ids` complete; with `last` also what was left open, as U+FFFD.

        Concatenated over a stream it equals `tokenizer.decode(all_ids, skip_special_tokens=True)`: both replace each
        maximal invalid part of a UTF-8 sequence by one U+FFFD.
        """
        return self._decoder.decode(b"".join(self.token_bytes[token_id] for token_id in ids), last)


def entries_of(logprobs: list[dict[int, Any]], ids: list[int], token_bytes: TokenBytes) -> list[dict]:
    """One object for each id: `token_id`, `token`, `bytes`, `logprob`, and `top_logprobs`, the likeliest ids.

    `logprobs`: vLLM's for each id, which hold the id itself and beside it those asked for, with their ranks. They are
    the model's own, before penalties and temperature.
    """
    found = []
    for token_id, of_id in zip(ids, logprobs, strict=False):
        ranked = sorted(of_id.items(), key=lambda item: item[1].rank)
        top = [_entry(one, value, token_bytes) for one, value in ranked]
        found.append(_entry(token_id, of_id[token_id], token_bytes) | {"top_logprobs": top})
    return found


def _entry(token_id: int, value: Any, token_bytes: TokenBytes) -> dict:
    raw = token_bytes[token_id]
    text = raw.decode("utf-8", errors="replace")
    return {"token_id": token_id, "token": text, "bytes": list(raw), "logprob": max(float(value.logprob), LOWEST)}
