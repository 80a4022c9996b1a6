"""Triton must wait longer at its exit than running requests may go on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from python_backends.config.deploy import DeployError, load_deploy_config
from python_backends.config.exit_timeout import (
    check_drain_time,
    command_line_of,
    exit_timeout_for,
    given_exit_timeout,
    main,
)
from tests.server import wait_until


@pytest.mark.parametrize(("drain_s", "seconds"), [(0.5, 20), (3.0, 20), (5.0, 20), (5.1, 21), (60.0, 75)])
def test_the_exit_timeout_has_room_for_the_rest_of_the_shutdown(drain_s, seconds):
    assert exit_timeout_for(drain_s) == seconds


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ([], None),
        (["--exit-timeout-secs", "7"], 7),
        (["--exit-timeout-secs=8", "--grpc-port", "1"], 8),
        (["--exit-timeout-secs", "20", "--exit-timeout-secs", "9"], 9),
        (["--exit-timeout-secs"], None),
        (["--exit-timeout-secs", "soon"], None),
        (["--exit-timeout", "6"], 6),
        (["--exit-t=5s"], 5),
        (["--exit-timeout-secs", " +4"], 4),
        (["--exit-timeout-secs", "-1"], -1),
        (["--exit-on-error", "9", "--exit-", "9", "--exit-timeout-secs-x", "9"], None),
    ],
)
def test_the_last_exit_timeout_of_a_command_line_counts(options, seconds):
    assert given_exit_timeout(options) == seconds


@pytest.fixture
def deploy(tmp_path):
    """A deploy configuration with a drain time of 30 s."""
    path = tmp_path / "slow_end.yaml"
    path.write_text("base_config: cpu\ndrain_timeout_s: 30\n")
    return path


@pytest.mark.parametrize(
    ("options", "limit"),
    [([], "30 (Triton's default)"), (["--exit-timeout-secs", "20"], "20 (as the server was started)")],
)
def test_a_drain_time_that_triton_would_cut_is_refused_with_file_key_and_limit(deploy, options, limit):
    with pytest.raises(DeployError) as caught:
        check_drain_time(load_deploy_config(deploy), ["/opt/tritonserver/bin/tritonserver", *options])
    for words in (str(deploy), "drain_timeout_s: must be below", limit, "got 30", "--exit-timeout-secs 45"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        ["tritonserver", "--exit-timeout-secs", "31"],
        ["ld.so", "/bundle/bin/tritonserver", "--exit-timeout-secs=45"],
        ["python3", "embeds_triton.py"],
        [],
    ],
)
def test_what_lets_it_end_passes(deploy, command):
    check_drain_time(load_deploy_config(deploy), command)


def test_a_command_line_is_read_from_its_process():
    process = subprocess.Popen([sys.executable, "-c", "input()", "--exit-timeout-secs", "7"], stdin=subprocess.PIPE)
    try:
        # For a moment of its start a process has none.
        wait_until(lambda: command_line_of(process.pid), 5, "a command line")
        words = command_line_of(process.pid)
        assert words[1:] == ["-c", "input()", "--exit-timeout-secs", "7"]
    finally:
        process.communicate(b"\n", 5)
    assert command_line_of(process.pid) == []


@pytest.mark.parametrize(
    ("options", "printed"), [([], "45 50\n"), (["--exit-timeout-secs", "99"], "99 104\n"), (["--x"], "45 50\n")]
)
def test_the_command_prints_when_the_server_ends_and_when_it_is_killed(deploy, monkeypatch, capsys, options, printed):
    monkeypatch.setenv("OMNI_DEPLOY_CONFIG", str(deploy))
    assert main(["--", *options]) == 0 and capsys.readouterr().out == printed


def test_the_command_never_prints_less_than_the_shortest_times(monkeypatch, capsys):
    monkeypatch.setenv("OMNI_DEPLOY_CONFIG", "cpu")
    assert main([]) == 0 and capsys.readouterr().out == "20 25\n"
    assert main(["--", "--exit-timeout-secs", "5"]) == 0 and capsys.readouterr().out == "5 25\n"


def test_the_command_says_what_is_wrong_with_the_deploy_configuration(monkeypatch, capsys):
    monkeypatch.setenv("OMNI_DEPLOY_CONFIG", os.devnull)
    assert main([]) == 2 and os.devnull in capsys.readouterr().err
