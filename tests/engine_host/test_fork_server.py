"""The fork server: what it imports is there in each engine, and what must not be forked is executed afresh."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.server import ROOT

SCRIPT = """
import json, sys, threading, time
from python_backends.engine_host import fork_server
imported = []
def preload(config):
    imported.append(1)
    if config["thread"]:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
def run(config):
    print(json.dumps([config["name"], len(imported), threading.active_count()]), flush=True)
    return config["code"]
sys.exit(fork_server.serve(preload, run))
"""


@pytest.mark.parametrize("thread", [False, True], ids=["alone", "a library's thread"])
def test_each_line_gets_a_process_with_what_was_imported_unless_that_cannot_be_forked(tmp_path, thread):
    script = tmp_path / "server.py"
    script.write_text(SCRIPT)
    reading, writing = os.pipe()
    lines = [{"name": name, "code": code, "thread": thread, "report": writing} for name, code in (("a", 0), ("b", 7))]
    done = subprocess.run(
        [sys.executable, str(script)], input="".join(json.dumps(line) + "\n" for line in lines), pass_fds=(writing,),
        capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(writing)
    with os.fdopen(reading) as reports:
        told = [json.loads(line) for line in reports]
    assert done.returncode == 0, done.stderr
    imported = 0 if thread else 1  # an engine that is executed afresh imports by itself
    assert [json.loads(line) for line in done.stdout.splitlines()] == [["a", imported, 1], ["b", imported, 1]]
    assert [list(one) for one in told] == [["pid"], ["code"]] * 2
    assert [one["code"] for one in told if "code" in one] == [0, 7]
