"""Plots of a run."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.ticker import ScalarFormatter

FIGURES = {
    "throughput": ("requests_per_s", "requests/s"),
    "ttfp": ("ttfp_ms_mean", "TTFP, mean (ms)"),
    "rtf": ("rtf_mean", "RTF, mean"),
}
STAGES = {"Thinker": ("opened", "thinker_done"), "Talker": ("first_text", "talker_done")}
STAGES |= {"Code2Wav": ("first_audio", "code2wav_done")}


def draw(out: Path, results: dict) -> list[str]:
    """Draw every figure; returns the names of the PNG files without their ending."""
    names = []
    for name, (column, label) in FIGURES.items():
        if any(column in row for row in results["rows"]):
            _by_level(out / f"{name}.png", results["rows"], column, label)
            names.append(name)
    if timeline := results.get("timeline"):
        _timeline(out / "timeline.png", timeline)
        names.append("timeline")
    return names


def _by_level(path: Path, rows: list[dict], column: str, label: str) -> None:
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for name, driver in dict.fromkeys((row["row"], row["driver"]) for row in rows):
        points = [row for row in rows if (row["row"], row["driver"]) == (name, driver) and column in row]
        style = "-o" if driver == "own" else ":x"
        axes.plot([p["concurrency"] for p in points], [p[column] for p in points], style, label=f"{name} ({driver})")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xticks(sorted({row["concurrency"] for row in rows}))
    axes.set(xlabel="concurrent requests", ylabel=label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _timeline(path: Path, timeline: dict) -> None:
    """Spans of the stages by the server's clock, packets of audio and how far they let a player play."""
    marks, packets = timeline["timings_ms"], timeline["packets"]
    figure, axes = pyplot.subplots(figsize=(8, 3), layout="constrained")
    for at, (start, end) in enumerate(STAGES.values()):
        if start in marks and end in marks:
            axes.barh(at, marks[end] - marks[start], left=marks[start], height=0.5)
            axes.annotate(f"{marks[end]:.0f} ms", (marks[end], at), xytext=(3, -3), textcoords="offset points")
    axes.plot([arrived for arrived, _ in packets], [3] * len(packets), "k|", markersize=14)
    axes.set_yticks(range(4), [*STAGES, "packets"])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    sound = sum(seconds for _, seconds in packets)
    title = f"one of {timeline['concurrency']} concurrent requests, stream {timeline['id'][:8]}: {sound:.1f} s of sound"
    axes.set(xlabel="ms since the request arrived", title=title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
