"""One report: parts that print Markdown tables and are kept as JSON."""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch


def parser(description: str | None, parts: Sequence[str]) -> argparse.ArgumentParser:
    """Arguments that every benchmark of an engine has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--toy", action="store_true", help="shrink all widths")
    made.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    made.add_argument("--out", type=Path, help="JSON file for all figures")
    return made


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; floats with three significant figures."""

    def cell(value: object) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    lines = [f"## {title}", "| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows), ""])


class Report:
    """Runs the parts that were asked for. A part that fails is reported, and `failed` is then true."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments, self.failed = arguments, False
        on_cuda = torch.device(arguments.device).type == "cuda"
        self.figures: dict[str, object] = {
            "device": torch.cuda.get_device_name() if on_cuda else "CPU",
            "torch": torch.__version__,
        }
        print(f"{self.figures['device']}, torch {torch.__version__}\n", flush=True)

    def part(self, name: str, title: str, header: Sequence[str], run: Callable[[], Sequence[Sequence[object]]]) -> None:
        """`run` gives the table's rows."""
        if name not in self._arguments.parts:
            return
        begin = time.perf_counter()
        try:
            rows = run()
        except Exception:
            self.failed = True
            print(f"## {title}: FAILED\n{traceback.format_exc()[-1500:]}", flush=True)
            return
        self.figures[name] = {"header": list(header), "rows": [list(row) for row in rows]}
        print(table(title, header, rows), f"[{time.perf_counter() - begin:.1f} s]\n", flush=True)
        if self._arguments.out:
            self._arguments.out.write_text(json.dumps(self.figures, indent=1))
