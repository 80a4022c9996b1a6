"""Lines in the log while an engine loads."""

import logging
import threading

from python_backends.engine_host.progress import LoadProgress


def test_a_long_load_is_not_a_silent_one(caplog):
    seen = threading.Event()

    class Seen(logging.Handler):
        def emit(self, record):
            seen.set()

    handler = Seen()
    logging.getLogger("engine_host").addHandler(handler)
    try:
        with caplog.at_level("INFO", "engine_host"), LoadProgress(every_s=0.01):
            assert seen.wait(60)
    finally:
        logging.getLogger("engine_host").removeHandler(handler)
    assert "still loading after" in caplog.text and "GB of host memory" in caplog.text
