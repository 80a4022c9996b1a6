"""Log probabilities in the form that clients get."""

from __future__ import annotations

from typing import Any

from python_backends.thinker.detokenizer import TokenBytes

# JSON has no infinity.
LOWEST = -9999.0


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
