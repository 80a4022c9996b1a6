"""What the host side carries: BLS model, data plane and gRPC, with generators in place of the engines.

    python -m scripts.benchmarks.host_path [--concurrency 64] [--rounds 10]

The engines emit at the rates of a server that answers 64 streams 100 times a second: 50 text deltas and 15 chunks of
audio a request, spread over `--seconds`; streams start one after the other over the same time, as those of a server in
the midst of its work did. Every piece carries the time of its emission, so the client sees how long the
way through data plane, BLS model and gRPC took.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml

from scripts.bench.table import table
from scripts.benchmarks.arguments import amount, count
from scripts.benchmarks.load import Load, request_message, run_load
from scripts.benchmarks.server import ROOT, SERVE, BenchServer


def _parser(judge: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[judge]
    )
    parser.add_argument("--concurrency", type=count, nargs="+", default=[64])
    parser.add_argument("--rounds", type=count, default=10, help="requests a stream")
    parser.add_argument("--text", type=count, default=50, help="text deltas a request")
    parser.add_argument("--audio", type=count, default=15, help="audio chunks a request")
    parser.add_argument("--frames", type=count, default=10, help="codec frames a chunk")
    parser.add_argument("--seconds", type=amount, default=0.6, help="seconds over which a request's pieces are emitted")
    parser.add_argument("--burst", action="store_true", help="all streams start, and so end, in the same instant")
    parser.add_argument("--audio-format", default="float32", choices=("float32", "int16"))
    parser.add_argument("--serve", type=Path, default=SERVE, help=argparse.SUPPRESS)
    parser.add_argument("--text-responses-per-s", type=count, help="max_text_responses_per_s (default: the server's)")
    parser.add_argument("--cores", type=int, nargs="+", help="processors the server may run on (default: all)")
    parser.add_argument("--engine-cores", type=int, nargs="+", help="those of the generators (default: the same)")
    parser.add_argument("--keep-log", type=Path, help="write the server's log to this file")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser


def deploy_config(args: argparse.Namespace) -> dict:
    """The deploy configuration of the played engines."""
    frames = args.audio * args.frames
    steps = {0: args.seconds / args.text, 1: args.seconds / frames, 2: 0.0}
    chunks = {"initial_codec_chunk_frames": args.frames, "codec_chunk_frames": args.frames}
    paced = {} if args.text_responses_per_s is None else {"max_text_responses_per_s": args.text_responses_per_s}
    return paced | {
        "connectors": {"data_plane": {"extra": chunks}},
        "stages": [
            {
                "stage_id": stage_id,
                "devices": "cpu",
                "engine_options": {"step_ms": 1000 * step_s},
                "input_connectors": {f"from_stage_{stage_id - 1}": "data_plane"} if stage_id else {},
            }
            for stage_id, step_s in steps.items()
        ],
        "warmup": False,
    }


def figures(concurrency: int, load: Load, cpu_s: dict[str, float]) -> dict:
    """One level's row. Delays in milliseconds, CPU in milliseconds a request."""
    row = {
        "concurrency": concurrency,
        "requests": load.requests,
        "failures": len(load.failures),
        "requests_per_s": load.requests / load.wall_s,
        "responses_per_s": load.responses / load.wall_s,
        "responses_per_request": load.responses / load.requests,
    }
    for kind, delays in load.delays.items():
        for name, value in zip(("p50", "p99", "max"), np.percentile(delays or [np.nan], (50, 99, 100)), strict=True):
            row[f"{kind}_delay_{name}_ms"] = 1000 * value
    row["cpu_ms_per_request"] = {name: 1000 * value / load.requests for name, value in sorted(cpu_s.items())}
    return row


def totals(row: dict) -> dict[str, float]:
    """What two versions are judged by: host-side CPU a request, and p99 of the delays."""
    cpu = sum(value for name, value in row["cpu_ms_per_request"].items() if name != "client")
    return {
        "CPU ms a request": cpu,
        "text p99, ms": row["text_delay_p99_ms"],
        "audio p99, ms": row["audio_delay_p99_ms"],
        "requests/s": row["requests_per_s"],
    }


def compare(clone: Path, turns: int, options: list[str]) -> int:
    """Run this benchmark here and in `clone` in turns (ours, theirs, theirs, ours, ...) and print the medians."""
    ours: list[list[dict]] = []
    theirs: list[list[dict]] = []
    sides = [(ROOT, ours), (clone.resolve(), theirs)]
    for turn in range(turns):
        for root, found in sides[:: -1 if turn % 2 else 1]:
            with tempfile.TemporaryDirectory() as directory:
                command = [sys.executable, "-m", "scripts.benchmarks.host_path", *options, "--json", f"{directory}/f"]
                env = os.environ | {"PYTHONPATH": str(root)}
                done = subprocess.run(command, cwd=root, env=env, stdout=subprocess.DEVNULL)
                if done.returncode:
                    return done.returncode
                found.append(json.loads(Path(directory, "f").read_text()))
    for level, row in enumerate(ours[0]):
        lines = []
        for name in totals(row):
            here, there = (statistics.median(totals(rows[level])[name] for rows in runs) for runs in (ours, theirs))
            lines.append((name, here, there, f"{100 * (here / there - 1):+.1f} %"))
        print(table((f"{row['concurrency']} at a time", "here", str(clone), "change"), lines), flush=True)
    return 0


def main() -> int:
    judge = argparse.ArgumentParser(add_help=False)
    judge.add_argument("--against", type=Path, metavar="CLONE", help="measure a clone's host side in turns with ours")
    judge.add_argument("--turns", type=count, default=3, help="runs of each with --against")
    judged, rest = judge.parse_known_args()
    args = _parser(judge).parse_args(rest)
    if judged.against is not None:
        return compare(judged.against, judged.turns, rest)
    message = request_message(args.text, args.audio * args.frames, args.audio_format)
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text("{}")
        deploy = Path(directory) / "played.yaml"
        deploy.write_text(yaml.safe_dump(deploy_config(args)))
        env = {
            "ENGINE_PYTHON": str(ROOT / "tests" / "played_engine_python"),
            "PLAYED_PYTHON": sys.executable,
            "PLAYED_CORES": " ".join(map(str, args.engine_cores or ())),
        }
        log = args.keep_log or Path(directory) / "server.log"
        if args.cores:
            # The client must not get in the way of what it measures.
            taken = {*args.cores, *(args.engine_cores or ())}
            os.sched_setaffinity(0, os.sched_getaffinity(0) - taken or os.sched_getaffinity(0))
        rows, spread_s = [], 0.0 if args.burst else args.seconds
        with BenchServer(directory, log, deploy, env, 60, args.serve, args.cores) as server:
            run_load(server.url, message, 4, 8, args.frames)
            for concurrency in args.concurrency:
                requests = args.rounds * concurrency
                before, own = server.cpu_seconds(), os.times()
                load = run_load(server.url, message, concurrency, requests, args.frames, spread_s)
                cpu = {name: value - before.get(name, 0.0) for name, value in server.cpu_seconds().items()}
                cpu["client"] = sum(os.times()[:2]) - sum(own[:2])
                expected = {"text": args.text * requests, "audio": args.audio * requests}
                if load.pieces != expected:
                    load.failures.append(f"pieces {load.pieces} where {expected} were emitted")
                rows.append(figures(concurrency, load, cpu))
                for failure in load.failures[:3]:
                    print(f"failure: {failure}", file=sys.stderr)
                print(json.dumps(rows[-1], indent=1), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 1 if any(row["failures"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
