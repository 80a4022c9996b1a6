"""Reference tables written from where the keys and fields are declared: `python -m python_backends.config.reference`.

Replaces what stands between two marks in docs/deploy.md and docs/requests.md.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from python_backends.config.deploy_keys import ConnectorExtra, ConnectorKeys, DeployKeys, TimeoutKeys
from python_backends.config.sampling import TalkerSampling, ThinkerSampling
from python_backends.config.schema import default_of, keys_of
from python_backends.config.stage_keys import Code2WavKeys, StageKeys, TalkerKeys, ThinkerKeys

BEGIN = "<!-- keys: written by python_backends/config/reference.py -->"
END = "<!-- end of keys -->"
DOCS = Path(__file__).resolve().parents[2] / "docs"
_SECTIONS = (
    ("Top level", DeployKeys, None),
    ("`connectors.NAME`", ConnectorKeys, None),
    ("`connectors.NAME.extra`", ConnectorExtra, None),
    ("`timeouts`", TimeoutKeys, None),
    ("`stages`: every stage", StageKeys, None),
    ("`stages`: 0, the Thinker", ThinkerKeys, StageKeys),
    ("`stages`: 1, the Talker", TalkerKeys, StageKeys),
    ("`stages`: 2, Code2Wav", Code2WavKeys, StageKeys),
)


REQUEST_SECTIONS = (
    ("`sampling.thinker`", ThinkerSampling, None),
    ("`sampling.talker`", TalkerSampling, None),
)
PAGES = {DOCS / "deploy.md": _SECTIONS, DOCS / "requests.md": REQUEST_SECTIONS}


def reference(sections: tuple = _SECTIONS) -> str:
    """Markdown tables with type, default and meaning of every key."""
    parts = []
    for title, cls, base in sections:
        inherited = set(keys_of(base)) if base else set()
        own = vars(cls)["__annotations__"]
        rows = [_row(name, item) for name, item in keys_of(cls).items() if name in own or name not in inherited]
        heading = f"### {title}\n\n{cls.__doc__.strip()}\n\n" if cls.__doc__ else f"### {title}\n\n"
        parts.append(heading + "| key | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _row(name: str, item: Any) -> str:
    cells = [f"`{name}`", item.metadata["kind"].name, _shown(default_of(item)), item.metadata["doc"]]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _shown(default: Any) -> str:
    if default is None:
        return "unset"
    if default == -1:
        return "required"
    if is_dataclass(default) and fields(default):
        return "the defaults below"
    return f"`{json.dumps(default)}`"


def with_reference(page: str, sections: tuple = _SECTIONS) -> str:
    """`page` with the tables between its marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{reference(sections)}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    for path, sections in PAGES.items():
        path.write_text(with_reference(path.read_text(), sections))
