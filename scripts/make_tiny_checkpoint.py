#!/usr/bin/env python3
"""Write a tiny Qwen3-Omni checkpoint: every mechanism of the 30B model at toy width, random weights, real tokenizer.

The directory is a genuine Hugging Face checkpoint of ``Qwen3OmniMoeForConditionalGeneration`` (about 120 MB, float32).
The same seed gives the same bytes. With ``--sizes`` it has the sizes of another config.json, such as the published one,
and no weights: to be served with ``load_format: dummy``.
"""

import argparse
import json
import shutil
from pathlib import Path

FILES = (
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
)


def write_checkpoint(out: Path, seed: int = 0, sizes: Path | None = None, files: Path | None = None) -> None:
    """Write the whole checkpoint into ``out``, which is made if it does not exist.

    ``sizes``: a config.json to take as it is, without weights. ``files``: a checkpoint whose tokenizer and processor
    files are copied, where they cannot be made.
    """
    from tiny_checkpoint.config import generation_config, tiny_config

    out.mkdir(parents=True, exist_ok=True)
    config = tiny_config() if sizes is None else json.loads(sizes.read_text())
    if sizes is None:
        from tiny_checkpoint.weights import build_model

        build_model(config, seed).save_pretrained(out)
    if files is None:
        from tiny_checkpoint.tokenizer import save_processor

        save_processor(out)
    else:
        for name in FILES:
            shutil.copy(files / name, out / name)
    # Our own dictionaries replace what save_pretrained wrote: it drops keys that only vLLM reads.
    for name, content in {"config.json": config, "generation_config.json": generation_config()}.items():
        (out / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default 0)")
    parser.add_argument("--sizes", type=Path, metavar="CONFIG.json", help="write these sizes, and no weights")
    parser.add_argument("--files", type=Path, metavar="CHECKPOINT", help="copy its tokenizer and processor files")
    args = parser.parse_args()
    write_checkpoint(args.out, args.seed, args.sizes, args.files)
    size = sum(path.stat().st_size for path in args.out.iterdir()) / 1e6
    print(f"wrote {args.out} ({size:.0f} MB)")


if __name__ == "__main__":
    main()
