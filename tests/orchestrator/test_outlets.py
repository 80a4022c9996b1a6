"""Which responses leave at once, and which wait for what comes after."""

import threading
import time
from types import SimpleNamespace

from python_backends.orchestrator.outlets import Outlets
from tests.server import wait_until

SPACING_S = 0.2
NEVER_S = 3600.0


class Served:
    """Outlets whose `serve` notes what it was called with, and when; and streams for them."""

    def __init__(self, spacing_s=SPACING_S):
        self.calls, self.lock = [], threading.Lock()
        self.outlets = Outlets(self.serve, lambda: spacing_s)

    def serve(self, stream):
        with self.lock:
            stream.queued = stream.urgent = stream.hurried = False
            self.calls.append((stream.stream_id, time.monotonic()))

    def put(self, stream, urgent=False):
        with self.lock:
            stream.urgent |= urgent
            self.outlets.put(stream)

    def wait(self, count):
        wait_until(lambda: len(self.calls) >= count, 5, f"{count} answers")
        return self.calls


def stream(name="one"):
    return SimpleNamespace(stream_id=name, queued=False, urgent=False, hurried=False, answered_at=0.0)


def test_a_streams_answers_lie_apart():
    served, one = Served(), stream()
    served.put(one)
    first = served.wait(1)[0][1]
    for _ in range(5):
        served.put(one)
    assert served.wait(2)[1][1] - first >= SPACING_S
    served.outlets.close()
    assert len(served.calls) == 2


def test_what_is_urgent_does_not_wait_and_takes_along_what_does():
    served, one = Served(NEVER_S), stream()
    served.put(one)
    served.wait(1)
    served.put(one)
    served.put(one, urgent=True)
    served.wait(2)
    time.sleep(0.1)
    assert len(served.calls) == 2
    served.outlets.close()


def test_streams_do_not_wait_for_each_other():
    served, streams = Served(NEVER_S), [stream(f"stream {at}") for at in range(40)]
    for one in streams:
        served.put(one)
    assert {name for name, _ in served.wait(40)} == {one.stream_id for one in streams}
    served.outlets.close()


def test_closing_serves_what_was_put_off():
    served, one = Served(spacing_s=60), stream()
    served.put(one)
    served.wait(1)
    served.put(one)
    served.outlets.close()
    assert len(served.calls) == 2
