"""From the figures of a run to a report: Markdown and CSV tables, PNG plots. `python -m scripts.benchmarks.report DIR`
makes them again from DIR/results.json.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from scripts.bench.table import table as markdown_table
from scripts.benchmarks.ladder import PUBLISHED

COLUMNS = {
    "row": "configuration",
    "driver": "driver",
    "concurrency": "concurrent",
    "requests": "requests",
    "failures": "failed",
    "requests_per_s": "requests/s",
    "audio_s_per_s": "audio s/s",
    "ttft_ms_mean": "TTFT mean (ms)",
    "ttft_ms_p50": "p50",
    "ttft_ms_p99": "p99",
    "ttfp_ms_mean": "TTFP mean (ms)",
    "ttfp_ms_p50": "p50",
    "ttfp_ms_p90": "p90",
    "ttfp_ms_p99": "p99",
    "rtf_mean": "RTF mean",
    "rtf_p99": "p99",
    "latency_ms_mean": "latency mean (ms)",
    "latency_ms_p99": "p99",
    "under_run_requests": "requests with under-runs",
}
# Means of TTFT and TTFP hang on how a driver starts: all at once as ours, or one after the other.
AGREEMENT = (
    "requests_per_s",
    "ttft_ms_mean",
    "ttft_ms_p50",
    "ttfp_ms_mean",
    "ttfp_ms_p50",
    "rtf_mean",
    "latency_ms_mean",
)


def table(rows: list[dict], columns: dict[str, str]) -> str:
    """A Markdown table of the columns named."""
    return markdown_table(list(columns.values()), [[row.get(name) for name in columns] for row in rows])


def agreement(rows: list[dict]) -> list[dict]:
    """How far perf_analyzer's figures are from our client's, for each configuration and level that both ran, in %."""
    own = {(row["row"], row["concurrency"]): row for row in rows if row["driver"] == "own"}
    compared = []
    for row in rows:
        mine = own.get((row["row"], row["concurrency"]))
        if row["driver"] == "perf_analyzer" and mine:
            line: dict = {"row": row["row"], "concurrency": row["concurrency"]}
            for name in AGREEMENT:
                if row.get(name) and mine.get(name):
                    line[name] = f"{100 * (row[name] / mine[name] - 1):+.1f} %"
            compared.append(line)
    return compared


def markdown(results: dict) -> str:
    """The report of `results`, the object that run.py writes as results.json."""
    rows = results["rows"]
    parts = ["# Benchmark report", "", f"Date: {results['date']}. Command: `{results['command']}`", ""]
    parts += [table([{"k": k, "v": v} for k, v in results["machine"].items()], {"k": "machine", "v": ""}), ""]
    parts += [f"Workload `seedtts_like`: {results['workload']}", "", "## Figures", "", table(rows, COLUMNS), ""]
    if compared := agreement(rows):
        names = {"row": "configuration", "concurrency": "concurrent"} | {name: COLUMNS[name] for name in AGREEMENT}
        parts += ["## perf_analyzer against our client", "", table(compared, names), ""]
    if results.get("ladder"):
        published = [
            {
                "row": item.name,
                "requests_per_s": item.requests_per_s,
                "ttfp_ms_mean": item.ttfp_ms,
                "rtf_mean": item.rtf,
            }
            for item in PUBLISHED
        ]
        names = {name: COLUMNS[name] for name in ("row", "requests_per_s", "ttfp_ms_mean", "rtf_mean")}
        parts += ["## Published: vLLM-Omni, 30B-A3B, 64 concurrent, three GPUs", "", table(published, names), ""]
    parts += [f"![{name}]({name}.png)" for name in results.get("plots", ())]
    return "\n".join(parts) + "\n"


def write(out: Path, results: dict) -> None:
    """Write results.json, results.csv, the plots and report.md into `out`."""
    try:
        from scripts.benchmarks import plots

        results["plots"] = plots.draw(out, results)
    except ImportError:
        results["plots"] = []
        print("no plots: matplotlib is not installed", file=sys.stderr)
    (out / "results.json").write_text(json.dumps(results, indent=1))
    names = sorted({name for row in results["rows"] for name in row}, key=lambda name: (name not in COLUMNS, name))
    with (out / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(results["rows"])
    (out / "report.md").write_text(markdown(results))


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    write(directory, json.loads((directory / "results.json").read_text()))
