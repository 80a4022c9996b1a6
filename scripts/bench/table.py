"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cell(value: object) -> str:
    """Three significant digits, whole numbers as they are, `-` for what was not measured."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table of `rows`, each with as many values as `header` has names."""
    lines = [list(header), ["---"] * len(header), *([cell(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
