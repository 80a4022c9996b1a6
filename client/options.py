"""The runner's command line."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from client.player import PLAYERS
from client.queries import QUERIES

ALIASES = {"multi_audios": "use_multi_audios"}
# Options of the published runners that say how the engines are started: here the server was started with them.
OF_THE_SERVER = ("--batch-timeout", "--init-timeout", "--init-sleep-seconds", "--shm-threshold-bytes", "--log-dir")
MAX_SEED = 2**63 - 1


class LineParser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; --help lists the options\n")


def parse(argv: Sequence[str] | None, program: str) -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """The options, checked as far as they can be without reading a file, and the parser for its `error`."""
    parser = make_parser(program)
    args = parser.parse_args(argv)
    args.query_type = ALIASES.get(args.query_type, args.query_type)
    if args.seed is not None and not 0 <= args.seed <= MAX_SEED - (args.num_prompts or 0):
        parser.error(f"argument --seed: must be from 0 to {MAX_SEED}, for all prompts, got {args.seed}")
    if args.play is not None:
        if args.max_in_flight > 1 or "audio" not in args.modalities:
            parser.error("argument --play: needs audio in --modalities and --max-in-flight 1")
        args.play = next((player for player in PLAYERS if shutil.which(player[0])), None)
        if args.play is None:
            parser.error(f"argument --play: needs one of {', '.join(player[0] for player in PLAYERS)}: install one")
    return args, parser


def make_parser(program: str) -> argparse.ArgumentParser:
    """The parser of the runner's options under the name `program`."""
    parser = LineParser(
        prog=program,
        description="Ask a server one prompt or many, write texts and speech to files, and sum up.",
        epilog="Exit status: 0 all well, 1 some failed, 2 wrong options, 124 batch time-out, 130 interrupted.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    kinds = [*QUERIES, *ALIASES]
    add("--query-type", "-q", choices=kinds, default="use_audio", metavar="KIND", help=", ".join(kinds))
    for kind in ("audio", "image", "video"):
        said = f"a path or a URL, as often as you like (default: a bundled {kind})"
        add(f"--{kind}-path", f"-{kind[0]}", action="append", default=[], metavar="SOURCE", help=said)
    add("--prompt", "-p", help="text to ask (default: the kind's own question)")
    add("--txt-prompts", metavar="FILE", help="one prompt a line, UTF-8; blank lines are skipped; only with text")
    several = "copies of the query (default: 1); with --txt-prompts the first N (default: all; more are cycled)"
    add("--num-prompts", type=number(int), metavar="N", help=several)
    add("--num-frames", type=number(int), default=16, metavar="N", help="frames taken from a video (default: 16)")
    add("--sampling-rate", type=number(int), metavar="HZ", help="resample the audio files here (default: as they are)")
    add("--modalities", type=_modalities, default="text,audio", help="text, audio or both (default: text,audio)")
    add("--max-in-flight", type=number(int), default=1, metavar="N", help="requests at once (default: 1)")
    add("--request-timeout-s", type=number(float), metavar="S", help="a request that takes longer has failed")
    add("--batch-timeout-s", type=number(float), metavar="S", help="end after that long, with status 124")
    add("--stream-audio-to-disk", action="store_true", help="write speech as it comes, not when the request has ended")
    add("--output-dir", default="output_audio_async_chunk", metavar="DIR", help="(default: output_audio_async_chunk)")
    add("--output-wav", dest="output_dir", action=_OldName, metavar="DIR", help="old name of --output-dir")
    add("--py-generator", action="store_true", help="keep no result: memory does not grow with the prompts")
    add("--speaker", help="voice")
    add("--seed", type=int, metavar="N", help="request i gets the seed N+i (default: drawn)")
    for stage in ("thinker", "talker"):
        said = f"sampling of the {stage}, such as temperature=0; as often as you like"
        add(f"--{stage}", action="append", default=[], type=_setting, metavar="KEY=VALUE", help=said)
    said = "runner: the published runner's sampling parameters; server: the server's own (default: runner)"
    add("--sampling", choices=("runner", "server"), default="runner", metavar="WHOSE", help=said)
    add("--url", type=address, default="127.0.0.1:8001", metavar="HOST:PORT", help="(default: 127.0.0.1:8001)")
    add("--wait", action="store_true", help="wait until the server is ready")
    said = "how long --wait waits (default: 300)"
    add("--stage-init-timeout", type=number(float), default=300.0, metavar="S", help=said)
    add("--log-stats", action="store_true", help="timings and usage of each request's stages")
    add("--play", action="store_const", const=True, help="play the speech as it comes")
    add("--json", metavar="FILE", help="write the summary there; the file must not exist")
    add("--quiet", action="store_true", help="print errors only")
    add("--enable-stats", dest="log_stats", action=_OldName, nargs=0, help=argparse.SUPPRESS)
    for option in ("--model", "--deploy-config"):
        add(option, action=_OfTheServer, metavar="...", help="taken, without effect: the server has its own")
    for option in ("--stage-configs-path", *OF_THE_SERVER):
        add(option, action=_OfTheServer, help=argparse.SUPPRESS)
    return parser


class _OldName(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, args: argparse.Namespace, value: Any, name: Any = None) -> None:
        print(f"{name} is an old name of --{self.dest.replace('_', '-')}", file=sys.stderr)
        setattr(args, self.dest, value or True)


class _OfTheServer(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, args: argparse.Namespace, value: Any, name: Any = None) -> None:
        print(f"{name} has no effect here: it belongs to the server, see scripts/serve.sh --help", file=sys.stderr)


def number(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parsed(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = -1
        # NaN is not above 0, and no time is infinite.
        if not 0 < value < 2**63:
            raise argparse.ArgumentTypeError(
                f"must be {'a whole' if kind is int else 'a'} number above 0, got {text!r}"
            )
        return value

    return parsed


def _modalities(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not set(names) <= {"text", "audio"} or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"must be text, audio or text,audio, got {text!r}")
    return names


def _setting(text: str) -> tuple[str, object]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def address(text: str) -> str:
    if not re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[^:/\s\[\]]+):\d{1,5}", text):
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, such as 127.0.0.1:8001, got {text!r}")
    return text
