"""The offline runner's program: ask a server one prompt or many, write texts and speech to files, sum up.

`python -m client.run --help` lists the options; docs/runner.md explains them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from client.batch import INTERRUPTED, Batch
from client.options import parse
from client.queries import QueryError, media_parts, prompts
from client.results import Summary
from client.streaming import OmniClient

WRONG_OPTIONS = 2
READY_S = 5.0


def main(argv: Sequence[str] | None = None, program: str = "python -m client.run") -> int:
    """Run the command line `argv` under the name `program`; returns the exit status. Wrong options raise SystemExit."""
    try:
        args, parser = parse(argv, program)
        try:
            texts, media = prompts(args), media_parts(args)
        except QueryError as error:
            parser.error(str(error))
        return asyncio.run(_run(args, texts, media, program))
    except KeyboardInterrupt:
        return INTERRUPTED


async def _run(args: argparse.Namespace, texts: list[str], media: list[dict], program: str) -> int:
    def fail(message: str, status: int) -> int:
        print(f"{program}: error: {message}", file=sys.stderr)
        return status

    async with OmniClient(args.url) as client:
        try:
            await client.wait_ready(args.stage_init_timeout if args.wait else READY_S)
        except TimeoutError:
            hint = "start one with scripts/serve.sh, name another with --url, or let --wait wait for it"
            return fail(f"no server is ready at {args.url}: {hint}", 1)
        try:
            directory = _directory(args.output_dir)
        except OSError as error:
            return fail(f"--output-dir {args.output_dir}: {error.strerror}: name a directory to write into", 1)
        try:
            summary = Summary(args.num_prompts or len(texts), None if args.json is None else Path(args.json))
        except OSError as error:
            return fail(f"--json {args.json}: {error.strerror}: name a file that does not exist yet", WRONG_OPTIONS)
        with summary:
            status = await Batch(args, client, directory, summary).run(texts, media)
        if summary.json_error is not None:
            return fail(f"--json {args.json}: {summary.json_error.strerror}", status or 1)
        return status


def _directory(name: str) -> Path:
    """Made if it is missing. Raises OSError when no file can be made there."""
    directory = Path(name)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory):
        return directory


if __name__ == "__main__":
    sys.exit(main())
