#!/usr/bin/env python3
"""Count code: lines of Python that hold neither only a docstring, an import, a comment nor nothing; and all of scripts.

Prints the code lines of `python_backends` and `client` and the physical lines of Python and bash in `scripts`.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Lines of `source` with code on them, without docstrings and imports."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        # A constant as a statement is a docstring, or the `...` of a body that has none.
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def counts() -> dict[str, int]:
    """Code lines by package, and the physical lines of `scripts`."""
    found = {
        name: sum(code_lines(path.read_text()) for path in (ROOT / name).rglob("*.py"))
        for name in ("python_backends", "client")
    }
    found["product"] = sum(found.values())
    scripts = [path for ending in ("*.py", "*.sh") for path in (ROOT / "scripts").rglob(ending)]
    return found | {"scripts (all lines)": sum(len(path.read_text().splitlines()) for path in scripts)}


if __name__ == "__main__":
    for name, number in counts().items():
        print(f"{name:20}{number:7}")
