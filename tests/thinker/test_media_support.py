"""Media are off where the installed vLLM computes them wrongly."""

from __future__ import annotations

import pytest
import vllm

from python_backends.thinker.media_support import with_usable_media
from python_backends.thinker.options import ThinkerOptions


@pytest.mark.parametrize(
    ("version", "usable"),
    [("0.26.0", False), ("0.31.2", False), ("0.32.0", True), ("0.32.0+cu130", True), ("0.1.dev7+g1234", True)],
)
def test_only_a_vllm_that_places_media_right_gets_them(monkeypatch, version, usable):
    monkeypatch.setattr(vllm, "__version__", version)
    options = ThinkerOptions(model="x")
    assert (with_usable_media(options).media is not None) == usable
    assert with_usable_media(ThinkerOptions(model="x", media=None)).media is None


def test_the_installed_vllm_takes_media():
    assert with_usable_media(ThinkerOptions(model="x")).media is not None
