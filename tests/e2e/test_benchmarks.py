"""The benchmark scripts work: a small slice of each, with no pass mark on time."""

import json
import subprocess
import sys

from scripts.benchmarks.drivers.perf_analyzer import find_binary
from tests.server import ROOT


def _run(*command) -> subprocess.CompletedProcess:
    words = [str(word) for word in command]
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_both_drivers_measure_a_running_server(server, tmp_path):
    done = _run(
        "scripts/benchmarks/run.py", "--url", server.url, "--levels", 1, 2, "--rounds", 1, "--scale", 0.1,
        "--out", tmp_path / "report",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    drivers = ("own", "perf_analyzer") if find_binary() else ("own",)
    assert [(row["concurrency"], row["driver"]) for row in results["rows"]] == [(n, d) for d in drivers for n in (1, 2)]
    assert all(row["failures"] == 0 and row["ttfp_ms_mean"] > 0 and row["rtf_mean"] > 0 for row in results["rows"])
    assert "seedtts_like" in (tmp_path / "report" / "report.md").read_text()


def test_the_host_path_carries_every_piece(tmp_path):
    figures = tmp_path / "host.json"
    done = _run("-m", "scripts.benchmarks.host_path", "--concurrency", 8, "--rounds", 2, "--json", figures)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(figures.read_text())
    assert row["requests"] == 16 and row["failures"] == 0
    assert 0 < row["audio_delay_p50_ms"] < 60_000


def test_the_host_path_judges_two_clones(tmp_path):
    done = _run(
        "-m", "scripts.benchmarks.host_path", "--against", ROOT, "--turns", 1, "--concurrency", 4, "--rounds", 1,
        "--text", 5, "--audio", 3,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| 4 at a time | here |" in done.stdout and "| CPU ms a request |" in done.stdout
