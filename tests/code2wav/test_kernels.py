"""The Triton kernels, run by Triton's interpreter on the CPU, against the PyTorch operations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKS = Path(__file__).with_name("kernel_checks.py")


@pytest.mark.parametrize("variant", ["general", "descriptors"])
def test_kernels_equal_the_torch_operations(variant):
    """In a process of its own: whether kernels are interpreted is decided when Triton is imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, str(CHECKS), variant], env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr
