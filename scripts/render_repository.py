#!/usr/bin/env python3
"""Write a Triton model repository for a deploy configuration: `qwen3-omni render` without an installation."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from python_backends.cli import render

if __name__ == "__main__":
    sys.exit(render(sys.argv[1:]))
