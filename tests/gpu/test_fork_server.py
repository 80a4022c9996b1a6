"""The fork server on a GPU: what has initialised CUDA is never forked, by whatever library it was; an import may be."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.server import ROOT

SCRIPT = """
import ctypes, json, os, sys
from python_backends.engine_host import fork_server
imported = []
def preload(config):
    import torch
    imported.append(1)
    if config["does"] == "torch":
        torch.ones(1, device="cuda")
    elif config["does"] == "driver":
        assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
def run(config):
    import torch
    print(json.dumps([len(imported), torch.ones(3, device="cuda").sum().item()]), flush=True)
    return 0
sys.exit(fork_server.serve(preload, run))
"""


@pytest.mark.parametrize(("does", "imported"), [("import", 1), ("torch", 0), ("driver", 0)])
def test_an_engine_computes_whatever_its_fork_server_has_done(tmp_path, does, imported):
    script = tmp_path / "server.py"
    script.write_text(SCRIPT)
    reading, writing = os.pipe()
    line = json.dumps({"does": does, "report": writing}) + "\n"
    env = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, input=line * 2, pass_fds=(writing,), capture_output=True, text=True, timeout=300, env=env
    )
    os.close(writing)
    os.close(reading)
    assert [json.loads(one) for one in done.stdout.splitlines()] == [[imported, 3.0]] * 2, done.stderr
