"""The runner's options: what is wrong with them in one line, and what they promise."""

from __future__ import annotations

import argparse
import os
import re
import socket

import numpy as np
import pytest

from client import run as runner
from client.options import make_parser, parse
from tests.client.runner import SMALL, run
from tests.server import ROOT

EMPTY, LATIN = "empty.txt", "latin.txt"
BAD = {
    "no such file": (("-a", "missing.wav"), "--audio-path missing.wav: No such file or directory"),
    "a directory": (("-q", "use_image", "-i", "."), "--image-path .: Is a directory"),
    "no sound": (("-a", EMPTY, "--sampling-rate", "8000"), f"--audio-path {EMPTY}: "),
    "resampled URL": (("-a", "http://a/b.wav", "--sampling-rate", "8000"), "--sampling-rate cannot be used with a URL"),
    "no prompts": (("-q", "text", "--txt-prompts", EMPTY), "empty.txt: holds no prompt"),
    "no such prompts": (("-q", "text", "--txt-prompts", "x.txt"), "x.txt: No such file"),
    "prompts in Latin-1": (("-q", "text", "--txt-prompts", LATIN), "is not UTF-8 text"),
    "prompts with media": (("-q", "use_audio", "--txt-prompts", LATIN), "--txt-prompts goes with --query-type text"),
    "wrong kind": (("-q", "use_smell"), "argument --query-type/-q: invalid choice: 'use_smell'"),
    "file of another kind": (("-q", "text", "-v", "a.mp4"), "--query-type text asks about no video"),
    "zero": (("--num-prompts", "0"), "argument --num-prompts: must be a whole number above 0, got '0'"),
    "negative": (("--max-in-flight", "-1"), "argument --max-in-flight: must be a whole number above 0"),
    "no number": (("--request-timeout-s", "nan"), "argument --request-timeout-s: must be a number above 0"),
    "infinite": (("--batch-timeout-s", "inf"), "argument --batch-timeout-s: must be a number above 0"),
    "seed": (("--seed", "-3"), "argument --seed: must be from 0"),
    "modalities": (("--modalities", "text,smell"), "argument --modalities: must be text, audio or text,audio"),
    "no value": (("--talker", "top_k"), "argument --talker: must be KEY=VALUE, got 'top_k'"),
    "address": (("--url", "localhost"), "argument --url: must be HOST:PORT"),
    "offline": (("--offline",), "unrecognized arguments: --offline"),
    "player": (
        ("--play", "--max-in-flight", "2"),
        "argument --play: needs audio in --modalities and --max-in-flight 1",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_status_2(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / EMPTY).write_text("\n  \n")
    (tmp_path / LATIN).write_bytes("schön".encode("latin-1"))
    words, said = BAD[name]
    before = sorted(tmp_path.iterdir())
    try:
        status = runner.main([*words])
    except SystemExit as ended:
        status = ended.code
    out, err = capsys.readouterr()
    assert status == 2 and not out and said in err and err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before, "nothing is made"


def test_an_unreachable_server_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    done = run(f"127.0.0.1:{port}", tmp_path, "-q", "text")
    assert done.status == 1 and done.err.count("\n") == 1 and "start one with scripts/serve.sh" in done.err
    assert not (tmp_path / "out").exists() and done.summary is None


def test_a_directory_that_cannot_be_written_is_one_line(server, tmp_path):
    (tmp_path / "out").write_text("a file")
    done = run(server.url, tmp_path, "-q", "text", *SMALL)
    assert done.status == 1 and done.err.count("\n") == 1 and "--output-dir" in done.err and "File exists" in done.err
    assert done.summary is None and (tmp_path / "out").read_text() == "a file"


def test_nothing_is_overwritten(server, tmp_path):
    """The summary's file must not exist; an existing directory is used, and what is in it stays."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    (tmp_path / "summary.json").write_text("{}")
    refused = run(server.url, tmp_path, "-q", "text", *SMALL)
    assert refused.status == 2 and "--json" in refused.err and (tmp_path / "summary.json").read_text() == "{}"
    (tmp_path / "summary.json").unlink()
    done = run(server.url, tmp_path, "-q", "text", "--modalities", "text", *SMALL)
    assert done.status == 0 and len(done.names) == 2 and (tmp_path / "out" / "mine.txt").read_text() == "mine"


def test_speech_is_played_as_it_comes(server, tmp_path):
    """`--play` gives the samples to the program; what is heard is what is written."""
    player = tmp_path / "aplay"
    player.write_text(f"#!/bin/sh\nexec cat > {tmp_path}/heard\n")
    player.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    words = ("-q", "text", "--play", "--thinker", "max_tokens=10", "--talker", "ignore_eos=true")
    done = run(server.url, tmp_path, *words, "--talker", "max_tokens=20", env=os.environ | {"PATH": path})
    assert done.status == 0, done.err
    heard = np.frombuffer((tmp_path / "heard").read_bytes(), "<i2")
    np.testing.assert_array_equal(heard, done.samples(done.summary["requests"][0]["id"]))


def test_quiet_prints_errors_only(server, tmp_path):
    done = run(server.url, tmp_path, "-q", "text", "--quiet", *SMALL)
    assert (done.status, done.out, done.err) == (0, "", "")
    (tmp_path / "bad").mkdir()
    done = run(server.url, tmp_path / "bad", "-q", "text", "--quiet", "--thinker", "top_p=7")
    assert done.status == 1 and not done.out and "sampling.thinker.top_p" in done.err


def test_the_document_lists_the_options():
    """docs/runner.md has each option once, with its default."""
    table = (ROOT / "docs" / "runner.md").read_text(encoding="utf-8").split("| option |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (`-.*?) \| (.*?) \|", table, re.MULTILINE)
    listed = {name: default for names, default in rows for name in re.findall(r"`(-[\w-]+)`", names)}
    usual, _ = parse([], "run")
    for action in make_parser("run")._actions:
        if (
            action.help == argparse.SUPPRESS
            or action.dest in ("help", "output_wav")
            or "--output-wav" in action.option_strings
        ):
            continue
        for name in action.option_strings:
            assert name in listed, name
        if isinstance(action.default, (str, int, float)) and action.default is not False:
            default = listed[action.option_strings[0]].strip("`")
            assert default == str(action.default).removesuffix(".0"), action.dest
    assert usual.modalities == ["text", "audio"] and usual.query_type == "use_audio"
