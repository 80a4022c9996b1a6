"""Delivery behind the step loop, as on CUDA, with a device whose samples arrive when the test says so."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from python_backends.code2wav.options import Code2WavRequest
from python_backends.config.errors import StageFailed
from python_backends.engines_common.delivery import ThreadDelivery


class SlowDevice:
    """Launches at once; samples arrive when `arrived` is set, or the device breaks."""

    def __init__(self, runner) -> None:
        self._runner = runner
        self.arrived = threading.Event()
        self.broken = False

    def reserve(self) -> None:
        self._runner.reserve()

    def launch(self, codes, slots, positions):
        samples = self._runner.launch(codes, slots, positions)

        def deliver(consume) -> None:
            assert self.arrived.wait(60)
            if self.broken:
                raise RuntimeError("an illegal memory access was encountered")
            samples(consume)

        return deliver


@pytest.fixture
def asynchronous(make_engine):
    engine = make_engine()
    engine._output = ThreadDelivery("code2wav-builder")
    engine._runner = SlowDevice(engine._runner)
    yield engine
    engine._runner.arrived.set()
    engine.close()


def test_steps_run_ahead_of_delivery_and_results_stay_in_order(asynchronous, sink, random_codes, reference):
    codes = random_codes(12)
    asynchronous.add(Code2WavRequest("s"))
    for start in range(0, 12, 4):
        asynchronous.feed("s", codes[start : start + 4], finished=start == 8)
        assert asynchronous.step()
    assert not sink.chunks
    assert asynchronous.stats()["slots_free"] == 3
    asynchronous._runner.arrived.set()
    asynchronous.close()
    np.testing.assert_allclose(sink.waveform("s"), reference(codes), rtol=0, atol=1e-5)


def test_abort_of_a_launched_stream_silences_it(asynchronous, sink, random_codes):
    for name in ("aborted", "kept"):
        asynchronous.add(Code2WavRequest(name))
        asynchronous.feed(name, random_codes(4), finished=True)
    assert asynchronous.step()
    asynchronous.abort("aborted")
    asynchronous._runner.arrived.set()
    asynchronous.close()
    assert "aborted" not in sink.chunks
    assert "aborted" not in sink.ended
    assert "kept" in sink.ended


def test_a_device_that_breaks_behind_the_step_fails_every_stream(asynchronous, sink, random_codes):
    for name in "ab":
        asynchronous.add(Code2WavRequest(name))
    asynchronous.feed("a", random_codes(4), finished=True)
    asynchronous._runner.broken = True
    assert asynchronous.step()
    asynchronous._runner.arrived.set()
    asynchronous.close()
    assert all(isinstance(sink.ended[name], StageFailed) for name in "ab")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        asynchronous.step()
