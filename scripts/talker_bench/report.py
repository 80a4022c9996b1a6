"""The benchmark's table, JSON and plot."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

TARGETS_MS = {"1": 3.0, "64": 6.0, "128": 8.0}
PARTS = ("backbone", "predictor_with_sampling", "sampling")


def table(results: dict) -> str:
    """Markdown for the README."""
    context = results["context"]
    lines = [f"Talker on {results['device']}, torch {results['torch']}, {context} rows of context:", ""]
    steps = results.get("steps", {})
    if steps and "error" not in steps:
        lines += [
            "| batch | step ms | backbone | predictor and its sampling | sampling | target |",
            "|---|---|---|---|---|---|",
        ]
        for batch, row in steps.items():
            cells = [f"{row[part]:.2f}" for part in PARTS]
            lines.append(f"| {batch} | {row['step']:.2f} | {' | '.join(cells)} | {TARGETS_MS.get(batch, '')} |")
        lines.append("")
    for part in ("libraries", "prefill", "engine", "equality", "agreement"):
        if part in results:
            lines.append(f"{part}: `{json.dumps(results[part])}`")
    return "\n".join(lines)


def save(results: dict, folder: Path) -> None:
    """Write JSON, the table, and a bar plot of the step where matplotlib is installed."""
    (folder / "talker.json").write_text(json.dumps(results, indent=1))
    (folder / "talker.md").write_text(table(results) + "\n")
    steps = results.get("steps", {})
    if importlib.util.find_spec("matplotlib") is None or not steps or "error" in steps:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    batches = list(steps)
    bottom = [0.0] * len(batches)
    for part in ("backbone", "predictor_with_sampling"):
        heights = [steps[batch][part] for batch in batches]
        axes.bar(batches, heights, bottom=bottom, label=part.replace("_", " "))
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    marks = [(batch, TARGETS_MS[batch]) for batch in batches if batch in TARGETS_MS]
    axes.plot([batch for batch, _ in marks], [ms for _, ms in marks], "k_", markersize=24, label="target")
    axes.set_xlabel("batch")
    axes.set_ylabel("ms a step")
    axes.set_title(f"Talker step, {results['device']}, {results['context']} rows of context")
    axes.legend()
    figure.tight_layout()
    figure.savefig(folder / "talker.png", dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    # Draws the plot again from a talker.json made on a machine without matplotlib.
    source = Path(sys.argv[1])
    save(json.loads(source.read_text()), source.parent)
