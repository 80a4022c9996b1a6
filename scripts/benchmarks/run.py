#!/usr/bin/env python3
"""Run the benchmark ladder against a server that this script starts, and write a report.

scripts/benchmarks/run.py --profile two_gpus --ladder --out report/
scripts/benchmarks/run.py --openai http://host:8000 --openai-model NAME --out report/   (another server, running)

Without GPUs it serves the tiny checkpoint and shortens the workload. It runs in the environment that set-up made.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import shlex
import sys
import tempfile
from functools import partial
from pathlib import Path

import yaml

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from python_backends.config.deploy_layers import merge
from scripts.benchmarks import ladder, machine, report
from scripts.benchmarks.arguments import amount, count
from scripts.benchmarks.drivers import openai, own, perf_analyzer
from scripts.benchmarks.records import Record, summarise
from scripts.benchmarks.server import SERVE, BenchServer
from scripts.benchmarks.workload import LEVELS, WARM_UPS, tasks

HUB_ID = "Qwen/Qwen3-Omni-30B-A3B-Instruct"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help=f"checkpoint directory or hub id to serve (default: {HUB_ID}, or tiny)")
    parser.add_argument("--profile", default="cpu", help="deploy profile or YAML")
    parser.add_argument(
        "--set", dest="overrides", type=Path, nargs="+", help="YAML files merged over it, in this order"
    )
    parser.add_argument("--load-format", help="`dummy`: random weights in all three stages")
    parser.add_argument("--ladder", action="store_true", help="run every row of the ladder, each on a fresh server")
    rows = range(len(ladder.LADDER))
    parser.add_argument("--rows", type=int, nargs="+", choices=rows, help="run these rows of the ladder only")
    parser.add_argument("--levels", type=count, nargs="+", help=f"concurrent requests (default: {LEVELS}, or 1 and 4)")
    parser.add_argument("--rounds", type=count, help="requests for each concurrent one (default: 10, or 2)")
    parser.add_argument("--scale", type=amount, help="shorten answers; 1 is the workload (default: 1, or 0.2)")
    parser.add_argument("--drivers", default="own,perf_analyzer", help="own, perf_analyzer")
    parser.add_argument("--url", help="gRPC address of a running server of ours to measure instead")
    parser.add_argument("--perf-analyzer-levels", type=count, nargs="*", help="levels for perf_analyzer (default: all)")
    parser.add_argument("--openai", help="base URL of a running OpenAI-compatible server to measure instead")
    parser.add_argument("--openai-model", default=HUB_ID)
    parser.add_argument("--openai-extra", type=json.loads, help="JSON merged into each request; see OpenAiServer")
    parser.add_argument("--out", type=Path, required=True, help="directory of the report")
    parser.add_argument("--serve", type=Path, default=SERVE, help="script that starts the server")
    return parser.parse_args(argv)


def fit_to_machine(args: argparse.Namespace, has_gpu: bool) -> None:
    """Fill in what the command line leaves open: the workload as it is, or on CPUs what ends within minutes."""
    # Elsewhere serve.sh's own choice is the tiny checkpoint.
    args.model = args.model or (HUB_ID if has_gpu else None)
    args.levels = args.levels or (list(LEVELS) if has_gpu else [1, 4])
    args.rounds = args.rounds or (10 if has_gpu else 2)
    args.scale = args.scale or (1.0 if has_gpu else 0.2)


class Bench:
    """One run of this script: gathers rows, writes the report after each, so that an interrupted run leaves one."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        facts = machine.facts()
        self.has_gpu = "gpus" in facts
        # A server that runs elsewhere is no matter of this machine's.
        fit_to_machine(args, self.has_gpu or bool(args.openai))
        self.results = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": shlex.join(["scripts/benchmarks/run.py", *sys.argv[1:]]),
            "machine": facts,
            "workload": f"answers scaled by {args.scale:g}, {args.rounds} requests for each concurrent one",
            "ladder": args.ladder,
            "rows": [],
        }
        args.out.mkdir(parents=True, exist_ok=True)

    def drivers(self, url: str) -> dict:
        """The drivers asked for, by name: functions of (tasks, concurrency)."""
        found = {}
        for name in self.args.drivers.split(","):
            if name == "own":
                found[name] = partial(own.run, url)
            elif name == "perf_analyzer":
                binary = perf_analyzer.find_binary()
                if binary is None:
                    print("perf_analyzer is not on PATH: left out", file=sys.stderr)
                    continue
                log = self.args.out / "perf_analyzer.log"
                found[name] = partial(perf_analyzer.run, url, binary=binary, log=log)
            else:
                raise SystemExit(f"unknown driver {name!r}: own, perf_analyzer")
        return found

    def measure(self, row: str, drivers: dict) -> None:
        """All levels, on a server that is warm after its first few requests."""
        series = itertools.count()
        warm = tasks(WARM_UPS, self.args.scale, next(series))
        for driver in list(drivers.values())[:1]:
            driver(warm, 1)
            driver(warm, WARM_UPS)
        for name, driver in drivers.items():
            levels = self.args.levels
            if name == "perf_analyzer" and self.args.perf_analyzer_levels is not None:
                levels = self.args.perf_analyzer_levels
            for concurrency in levels:
                todo = tasks(self.args.rounds * concurrency, self.args.scale, next(series))
                try:
                    records = driver(todo, concurrency)
                except (OSError, RuntimeError, ValueError) as error:
                    # The figures that the other drivers got are still worth their report.
                    print(f"{name} at {concurrency}: {error}", file=sys.stderr)
                    records = [Record(0.0, error=f"{name}: {error}")]
                self.add(row, name, concurrency, records)

    def add(self, row: str, driver: str, concurrency: int, records: list[Record]) -> None:
        figures = {"row": row, "driver": driver, "concurrency": concurrency} | summarise(records)
        self.results["rows"].append(figures)
        for record in [record for record in records if record.failure is not None][:3]:
            print(f"failed: {record.failure}", file=sys.stderr)
        names = {name: report.COLUMNS[name] for name in SHORT}
        if len(self.results["rows"]) == 1:
            print(report.table([], names))
        print(report.table([figures], names).splitlines()[-1], flush=True)
        self.note_timeline(concurrency, records)
        report.write(self.args.out, self.results)

    def note_timeline(self, concurrency: int, records: list[Record]) -> None:
        """Keep the request of median latency of the highest level that our server summed up."""
        served = sorted((r for r in records if r.failure is None and r.summary), key=lambda r: r.finished - r.started)
        if served:
            record = served[len(served) // 2]
            packets = [(1000 * (at - record.started), seconds) for at, seconds in record.audio]
            self.results["timeline"] = record.summary | {"packets": packets, "concurrency": concurrency}

    def ours(self) -> None:
        args = self.args
        overrides: dict = {}
        for path in args.overrides or ():
            overrides = merge(overrides, yaml.safe_load(path.read_text()))
        for number, row in enumerate(ladder.rows(args.ladder, args.rows, self.has_gpu)):
            with tempfile.TemporaryDirectory() as directory:
                deploy = Path(directory) / "deploy.yaml"
                deploy.write_text(yaml.safe_dump(ladder.deploy_yaml(args.profile, row, args.load_format, overrides)))
                log = args.out / f"server-{number}.log"
                with BenchServer(args.model, log, deploy, serve=args.serve) as server:
                    print(f"# {row.name}: ready after {server.start_s:.0f} s", flush=True)
                    self.measure(row.name, self.drivers(server.url))

    def other(self) -> None:
        args = self.args
        extra = args.openai_extra if args.openai_extra is not None else openai.vllm_omni_lengths()
        server = openai.OpenAiServer(args.openai.rstrip("/"), args.openai_model, extra)
        self.measure(args.openai_model, {"openai": partial(openai.run, server)})


SHORT = ("row", "driver", "concurrency", "requests", "failures", "requests_per_s", "ttft_ms_mean", "ttfp_ms_mean")
SHORT += ("ttfp_ms_p99", "rtf_mean", "latency_ms_mean", "under_run_requests")


def main() -> int:
    args = arguments()
    bench = Bench(args)
    if args.openai:
        bench.other()
    elif args.url:
        bench.measure(args.url, bench.drivers(args.url))
    else:
        bench.ours()
    print(f"report: {args.out / 'report.md'}")
    return 1 if any(row["failures"] for row in bench.results["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
