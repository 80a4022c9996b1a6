#!/usr/bin/env python3
"""A checkpoint directory without weights: the published sizes, to be served with `load_format: dummy`.

scripts/benchmarks/gpu/dummy_checkpoint.py OUT --files CHECKPOINT [--config CONFIG.json]
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

CONFIG = Path(__file__).with_name("qwen3_omni_30b_a3b_instruct.config.json")
FILES = (
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
)


def write(out: Path, files: Path, config: Path = CONFIG) -> None:
    """Write `config` and the tokenizer and processor files of the checkpoint `files` into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(json.loads(config.read_text()), indent=2) + "\n")
    for name in FILES:
        shutil.copy(files / name, out / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--files", type=Path, required=True, help="checkpoint with Qwen's tokenizer and processor files"
    )
    parser.add_argument("--config", type=Path, default=CONFIG, help="config.json (default: the published sizes)")
    args = parser.parse_args()
    write(args.out, args.files, args.config)


if __name__ == "__main__":
    main()
