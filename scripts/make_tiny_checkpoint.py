#!/usr/bin/env python3
"""Write a tiny Qwen3-Omni checkpoint: every mechanism of the 30B model at toy width, random weights, real tokenizer.

The directory is a genuine Hugging Face checkpoint of ``Qwen3OmniMoeForConditionalGeneration`` (about 120 MB, float32).
The same seed gives the same bytes.
"""

import argparse
import json
from pathlib import Path

from tiny_checkpoint.config import generation_config, tiny_config
from tiny_checkpoint.tokenizer import save_processor
from tiny_checkpoint.weights import build_model


def write_checkpoint(out: Path, seed: int) -> None:
    """Write the whole checkpoint into ``out``, which is made if it does not exist."""
    out.mkdir(parents=True, exist_ok=True)
    config = tiny_config()
    build_model(config, seed).save_pretrained(out)
    save_processor(out)
    # Our own dictionaries replace what save_pretrained wrote: it drops keys that only vLLM reads.
    for name, content in {"config.json": config, "generation_config.json": generation_config()}.items():
        (out / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default 0)")
    arguments = parser.parse_args()
    write_checkpoint(arguments.out, arguments.seed)
    size = sum(path.stat().st_size for path in arguments.out.iterdir()) / 1e6
    print(f"wrote {arguments.out} ({size:.0f} MB, seed {arguments.seed})")


if __name__ == "__main__":
    main()
