"""Serving loads no processor: each costs seconds, while nobody else's media are prepared."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from tests.thinker import samples
from tests.thinker.test_media import ask, audio, image, video


@pytest.mark.parametrize("frames", [20, 40])
def test_no_request_makes_vllm_load_a_processor(media_server, monkeypatch, frames):
    """Lengths and rates of films are arguments of the processor; they must not be arguments of its loading."""
    film = samples.film(frames=frames, rate=8, sound=samples.tone(frames / 8))
    loads = []
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *args, **kwargs: loads.append(args))
    for parts in (
        [video(film, use_audio_in_video=True)],
        [video(film, fps=frames / 10)],
        [video(film), audio(samples.tone()), image(samples.picture())],
    ):
        media_server.answer(ask(*parts, "What?"), max_tokens=2, speak=False)
    assert not loads
