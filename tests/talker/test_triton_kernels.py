"""Runs the kernel checks in a process of their own, where Triton is imported in interpreter mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_kernels_equal_their_twins_under_the_interpreter():
    checks = Path(__file__).with_name("check_kernels.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", str(checks)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout[-4000:]
