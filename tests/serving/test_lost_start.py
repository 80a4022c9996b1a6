"""Whether Triton knows of every model whose stub has started."""

import threading
import time

import pytest

from python_backends.config.errors import OmniError, ShuttingDown
from python_backends.serving.lost_start import MARK, lost_model, mark
from tests.server import ROOT

STAGES = ("thinker", "talker", "code2wav")


class Triton:
    """Answers calls on models: those in `unknown` with `error`."""

    def __init__(self, *unknown, error=OmniError):
        self.unknown, self.error, self.calls = set(unknown), error, []

    def call(self, name):
        self.calls.append(name)
        if name in self.unknown:
            raise self.error(f"{name} is not ready")


def test_when_triton_knows_all_nothing_is_lost():
    triton = Triton()
    assert lost_model(STAGES, triton.call, threading.Event(), 0.0) is None
    assert triton.calls == list(STAGES)


def test_a_model_that_stays_unknown_is_lost():
    triton = Triton("talker", "code2wav")
    assert lost_model(STAGES, triton.call, threading.Event(), 0.0, 0.1) == "talker"
    assert triton.calls.count("talker") >= 2


def test_a_model_that_comes_later_is_not():
    triton = Triton("code2wav")
    threading.Timer(0.5, triton.unknown.clear).start()
    assert lost_model(STAGES, triton.call, threading.Event(), 0.0, 10.0) is None


@pytest.mark.parametrize("when_s", [0.0, 0.3])
def test_a_server_that_ends_has_lost_nothing(when_s):
    stop = threading.Event()
    threading.Timer(when_s, stop.set).start()
    started = time.monotonic()
    assert lost_model(STAGES, Triton(*STAGES).call, stop, 0.1, 10.0) is None
    assert time.monotonic() - started < 25
    assert lost_model(STAGES, Triton(*STAGES, error=ShuttingDown).call, threading.Event(), 0.0, 0.0) is None


def test_the_mark_is_what_serve_sh_looks_for(tmp_path):
    mark(tmp_path)
    script = (ROOT / "scripts" / "serve.sh").read_text()
    assert (tmp_path / MARK).exists() and f"$OMNI_RUNTIME_DIR/{MARK}" in script
