"""How the runner ends: Ctrl-C, kill -9, a dead engine, a full disk, time limits, a lost server, bad input."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from client.queries import BUNDLED
from tests.client.runner import LONG, SMALL, end, run, start
from tests.server import wait_until


def wav_of(directory: Path) -> Path | None:
    return next((directory / "out").glob("*.wav"), None) if (directory / "out").is_dir() else None


def streamed(directory: Path) -> bool:
    """A second of speech or more has been written."""
    wav = wav_of(directory)
    return wav is not None and wav.stat().st_size > 48000


def check_valid(wav: Path) -> np.ndarray:
    """The file says how long it is, and is that long."""
    samples, rate = soundfile.read(wav, dtype="int16")
    assert rate == 24000 and samples.size and wav.stat().st_size >= 44 + 2 * samples.size
    return samples


def started(server, directory: Path, *words: object, **how):
    """A run whose speech is being written to disk."""
    process = start(server.url, directory, "-q", "text", "--stream-audio-to-disk", *LONG, *words, **how)
    wait_until(lambda: streamed(directory) or process.poll() is not None, 60, "speech is written")
    assert process.poll() is None, process.communicate()
    return process


# ---- Must be shown, 2 ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_run_sums_up_and_leaves_a_valid_file(server, tmp_path, number):
    process = started(server, tmp_path, "--num-prompts", 3, "--max-in-flight", 2)
    process.send_signal(number)
    done = end(process, tmp_path)
    assert done.status == 130 and done.summary["status"] == 130
    assert "Traceback" not in done.err and "Total: 0/3 succeeded, 1 not started" in done.out
    assert [request["error"]["code"] for request in done.summary["requests"]] == ["cancelled"] * 2
    kept = [name for request in done.summary["requests"] for name in request["files"]]
    assert sorted(Path(name).name for name in kept) == done.names, "no unfinished file is left"
    for name in kept:
        check_valid(Path(name))
    server.wait_idle(10)


def test_a_run_that_is_killed_leaves_a_valid_file_and_no_request(server, tmp_path):
    """kill -9: whatever the moment, the WAV is whole; the server is free again."""
    process = started(server, tmp_path)
    process.kill()
    process.communicate()
    check_valid(wav_of(tmp_path))
    assert not list((tmp_path / "out").glob("*.txt"))
    server.wait_idle(10)


def test_a_full_disk_fails_its_request_with_a_valid_file(server, tmp_path):
    limit = 100_001

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    for stream in ((), ("--stream-audio-to-disk",)):
        where = tmp_path / str(len(stream))
        where.mkdir()
        words = ("-q", "text", "--thinker", "max_tokens=8", "--talker", "ignore_eos=true", "--talker", "max_tokens=60")
        done = run(server.url, where, *words, *stream, preexec_fn=full)
        assert done.status == 1 and "Traceback" not in done.err
        (request,) = done.summary["requests"]
        assert request["error"]["code"] == "local" and "File too large" in request["error"]["reason"]
        assert "[ERROR] local" in done.out
        assert len(done.names) == len(stream), "what is not whole is not there, but for a stream"
        if stream:
            samples = check_valid(wav_of(where))
            assert wav_of(where).stat().st_size == 44 + 2 * samples.size, "no piece of a chunk hangs on"
    server.wait_idle(10)


def test_a_dead_engine_fails_the_requests_that_it_had(server, tmp_path):
    process = started(server, tmp_path)
    os.kill(server.status("talker")["pid"], signal.SIGKILL)
    done = end(process, tmp_path)
    assert done.status == 1 and done.summary["requests"][0]["error"]["code"] == "stage_failed"
    check_valid(wav_of(tmp_path))
    wait_until(lambda: serves(server, tmp_path), 120, "the server serves again")


def serves(server, directory: Path) -> bool:
    where = directory / f"again{time.monotonic()}"
    where.mkdir()
    return run(server.url, where, "-q", "text", "--quiet", *SMALL).status == 0


@pytest.mark.parametrize(("option", "status", "count"), [("--request-timeout-s", 1, 2), ("--batch-timeout-s", 124, 1)])
def test_time_limits(server, tmp_path, option, status, count):
    """One request is cancelled and counts as an error; or all are."""
    done = run(server.url, tmp_path, "-q", "text", "--num-prompts", 2, option, 1.5, *LONG, "--stream-audio-to-disk")
    assert done.status == status == done.summary["status"] and done.summary["total"] == 2
    assert [request["error"]["code"] for request in done.summary["requests"]] == ["timeout"] * count
    assert done.summary["not_started"] == 2 - count
    server.wait_idle(10)


def test_some_failed(server, tmp_path):
    """A request that the server refuses is an error of its own; a run of such ends with 1."""
    done = run(server.url, tmp_path, "--prompt", "<|im_end|>", "--audio-path", BUNDLED / "hill.png")
    assert done.status == 1 and done.names == []
    assert "[ERROR] invalid_request: messages[0].content" in done.out


def test_a_server_that_is_lost_fails_the_rest(tmp_path):
    """What listens and answers nothing is no server; what breaks each connection is one that is lost."""
    with socket.create_server(("127.0.0.1", 0)) as lost:
        url = f"127.0.0.1:{lost.getsockname()[1]}"

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    lost.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        done = run(url, tmp_path, "--wait", "--stage-init-timeout", 2)
        lost.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    assert done.status == 1 and done.err.count("\n") == 1 and "no server is ready" in done.err
    assert done.names == [] and not (tmp_path / "out").exists()
