"""The real command line of the runner, as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from tests.server import ROOT

# Small answers of the tiny checkpoint: enough for several chunks.
SMALL = ("--thinker", "max_tokens=10", "--talker", "max_tokens=12")
LONG = ("--thinker", "max_tokens=8", "--talker", "ignore_eos=true", "--talker", "max_tokens=1500")


@dataclass
class Run:
    """What a run left: its status, what it said, its files and its summary."""

    status: int
    out: str
    err: str
    directory: Path
    summary: dict | None

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir()) if self.directory.is_dir() else []

    def text(self, name: str) -> str:
        return (self.directory / f"{name}.txt").read_text(encoding="utf-8")

    def samples(self, name: str) -> np.ndarray:
        samples, rate = soundfile.read(self.directory / f"output_{name}.wav", dtype="int16")
        assert rate == 24000 and samples.ndim == 1
        return samples


def command(url: str, directory: Path, words: Sequence[object]) -> list[str]:
    options = ["--url", url, "--output-dir", directory / "out", "--json", directory / "summary.json"]
    return [sys.executable, "-m", "client.run", *map(str, [*options, *words])]


def start(url: str, directory: Path, *words: object, **how) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    return subprocess.Popen(command(url, directory, words), **pipes, **how)


def end(process: subprocess.Popen, directory: Path) -> Run:
    out, err = process.communicate(timeout=120)
    summary = directory / "summary.json"
    facts = json.loads(summary.read_text()) if summary.exists() else None
    return Run(process.returncode, out, err, directory / "out", facts)


def run(url: str, directory: Path, *words: object, **how) -> Run:
    return end(start(url, directory, *words, **how), directory)
