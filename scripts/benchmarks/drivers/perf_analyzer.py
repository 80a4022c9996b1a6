"""Driver: NVIDIA's perf_analyzer, its profile export read into the same records."""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from scripts.benchmarks.records import SAMPLE_RATE, Record
from scripts.benchmarks.workload import Task, perf_analyzer_input

ROOT = Path(__file__).resolve().parents[3]
# The export spells every sample out. An output that a response lacks is a lone number there, never a list.
_SAMPLES = re.compile(rb'"(audio|audio_int16)":\[([^\]]*)\]')


def find_binary() -> str | None:
    """perf_analyzer's path: `PERF_ANALYZER`, else on PATH, else where scripts/setup.sh puts it, else None."""
    environment = Path(os.environ.get("OMNI_ENV_DIR") or ROOT / ".env")
    ours = environment / "triton" / "perf" / "bin" / "perf_analyzer"
    return os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer") or (str(ours) if ours.exists() else None)


def run(url: str, tasks: list[Task], concurrency: int, binary: str, log: Path | None = None) -> list[Record]:
    """Send `tasks` once each with perf_analyzer. Raises RuntimeError with its output when it fails."""
    with tempfile.TemporaryDirectory() as directory:
        data, export = Path(directory) / "input.json", Path(directory) / "export.json"
        data.write_text(perf_analyzer_input(tasks))
        command = [binary, "-m", "qwen3_omni", "-u", url, "-i", "grpc", "--streaming", "--async"]
        command += ["--input-data", str(data), "--concurrency-range", str(concurrency)]
        command += ["--request-count", str(len(tasks)), "--profile-export-file", str(export)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if log is not None:
            log.write_text(done.stdout)
        if done.returncode or not export.exists():
            raise RuntimeError(f"perf_analyzer ended with {done.returncode}:\n{done.stdout[-2000:]}")
        return read_export(export)


def read_export(path: Path) -> list[Record]:
    """Read a `--profile-export-file` of the `qwen3_omni` model."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as export:
        # Samples are counted before the JSON is parsed: they are all but a thousandth of the file.
        small = _SAMPLES.sub(lambda found: b'"samples":%d' % (found[2].count(b",") + 1), export)
    body = json.loads(small.decode("utf-8", "replace"))
    return [_record(request) for experiment in body["experiments"] for request in experiment["requests"]]


def _record(request: dict) -> Record:
    record = Record(request["timestamp"] / 1e9)
    for time_ns, outputs in zip(request["response_timestamps"], request["response_outputs"], strict=True):
        now = time_ns / 1e9
        if outputs.get("text"):
            record.text_arrived(now)
        if "samples" in outputs:
            record.audio.append((now, outputs["samples"] / SAMPLE_RATE))
        if outputs.get("summary"):
            record.finished, record.summary = now, json.loads(outputs["summary"])
    sent = json.loads(request["request_inputs"]["request"])
    record.expected_audio_s = sent["sampling"]["talker"]["max_tokens"] / 12.5
    return record
