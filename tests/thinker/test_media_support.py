"""Media are off where the installed vLLM computes them wrongly."""

from __future__ import annotations

import pytest
import vllm

from python_backends.thinker.media.options import MediaOptions
from python_backends.thinker.vllm_patches.media_support import usable_media


@pytest.mark.parametrize(
    ("version", "usable"),
    [("0.26.0", False), ("0.31.2", False), ("0.32.0", True), ("0.32.0+cu130", True), ("0.1.dev7+g1234", True)],
)
def test_only_a_vllm_that_places_media_right_gets_them(monkeypatch, version, usable):
    monkeypatch.setattr(vllm, "__version__", version)
    assert (usable_media(MediaOptions()) is not None) == usable
    assert usable_media(None) is None


def test_the_installed_vllm_takes_media():
    assert usable_media(MediaOptions()) is not None
