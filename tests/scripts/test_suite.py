"""The suite on a busy machine: what a failure may not do to the rest of it."""

import ast
import gc
import inspect
import traceback

from tests.server import Server


class Garbage:
    """A cycle whose finalizer logs an exception, as threads and finalizers of a failed test do."""

    said = []

    def __init__(self):
        self.me = self

    def __del__(self):
        try:
            {}["x"] + {}["y"]
        except KeyError:
            self.said.append(traceback.format_exc())


def test_a_traceback_that_is_formatted_during_a_parse_does_not_end_pytest():
    """The suite holds on a busy machine: no SystemError while a failure is shown."""
    source, thresholds = inspect.getsource(inspect), gc.get_threshold()
    gc.set_threshold(50, 5, 5)
    try:
        for _ in range(5):
            for _ in range(40):
                Garbage()
            ast.parse(source)
    finally:
        gc.set_threshold(*thresholds)
    assert Garbage.said and all("KeyError" in text for text in Garbage.said)


class Fragile(Server):
    """Whose state is what the test says."""

    def __init__(self, states):
        self.states, self.calls, self.process = list(states), [], self

    def poll(self):
        return 1 if self.states[0] == "ended" else None

    def is_whole(self):
        self.calls.append(self.states[0])
        return (self.states.pop(0) if len(self.states) > 1 else self.states[0]) == "whole"

    def stop(self):
        self.calls.append("stop")

    def __enter__(self):
        self.calls.append("start")


def test_a_server_that_is_not_whole_mends_itself_or_is_replaced():
    """The suite holds on a busy machine: a server that is not whole is replaced before the next test."""
    whole, mending, ended = Fragile(["whole"]), Fragile(["restarting", "restarting", "whole"]), Fragile(["ended"])
    for server in (whole, mending, ended):
        server.make_whole()
    assert whole.calls == ["whole"]
    assert mending.calls == ["restarting", "restarting", "whole"]
    assert ended.calls == ["ended", "stop", "start"]
