"""Benchmark of Code2Wav: kernel variants, correctness, whole steps, and re-decoding left context as a baseline.

    python scripts/bench_code2wav.py --toy --images docs/images          # CPU, toy size
    python scripts/bench_code2wav.py --device cuda --out results.json    # GPU, published sizes, random weights
    python scripts/bench_code2wav.py --device cuda --tune                # also every kernel variant of every layer
    python scripts/bench_code2wav.py --device cuda --sections operations # which kernel fails or is wrong
    python scripts/bench_code2wav.py --plot results.json --images DIR    # the throughput picture of an earlier run

Prints Markdown tables; `--out` gets all figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from python_backends.code2wav import build
from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.model import Code2WavModel
from python_backends.code2wav.ops import Batch, Ops
from python_backends.code2wav.options import SAMPLE_RATE, Code2WavOptions
from python_backends.code2wav.parameters import build_parameters
from python_backends.code2wav.state import StreamState
from python_backends.code2wav.weights import random_tensors
from scripts.code2wav_bench import check, steps
from scripts.code2wav_bench.timing import ceilings, median_ms, table

TOY = Code2WavConfig(
    codebook_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=16,
    decoder_dim=64,
)


class Bench:
    """Holds the model; each section adds to `figures` and prints its tables. A section that fails is reported."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.device = arguments, arguments.device
        self.cuda = self.device.startswith("cuda")
        self.config = TOY if arguments.toy else Code2WavConfig()
        self.streams = 8 if arguments.toy else 64
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.tensors = random_tensors(self.config, self.device)
        self.parameters = build_parameters(self.tensors, self.config, self.device, self.dtype)
        self.figures: dict[str, object] = {"device": torch.cuda.get_device_name() if self.cuda else "cpu"}
        self.ops: Ops = self._ops(None)
        self.failed = False
        torch.backends.cudnn.benchmark = True

    def section(self, name: str) -> None:
        try:
            getattr(self, name)()
        except Exception:
            self.failed = True
            print(f"## {name}: FAILED\n{traceback.format_exc()[-1500:]}", flush=True)
        if self.cuda:
            torch.cuda.empty_cache()

    def _ops(self, plan) -> Ops:
        if not self.cuda:
            return Ops()
        from python_backends.code2wav.plan import H200_PLAN
        from python_backends.code2wav.triton_ops import TritonOps

        return TritonOps(plan or H200_PLAN)

    def _model(self) -> tuple[Code2WavModel, StreamState]:
        state = StreamState(self.config, self.parameters, self.streams, self.device, self.dtype)
        return Code2WavModel(self.config, self.parameters, self.ops), state

    def ceilings(self) -> None:
        self.figures["ceilings"] = found = ceilings()
        print(table("Ceilings of this device", list(found), [list(found.values())]), flush=True)

    def layers(self) -> None:
        from scripts.code2wav_bench.layers import best_plan, cases, time_case

        _compile_ahead(self.arguments.compile_processes)
        results = []
        for case in cases(self.config, self.parameters, self.streams, 25):
            results += time_case(case, self.dtype, self.device)
            torch.cuda.empty_cache()
        rows = [[r.layer, r.variant, r.ms, r.tflop_s, r.error] for r in results]
        print(table("Layers at 64 × 25 frames", ["layer", "variant", "ms", "TFLOP/s", "error"], rows), flush=True)
        plan = best_plan(results)
        self.figures["layers"] = [[*row[:2], *map(float, row[2:])] for row in rows]
        self.figures["plan"] = repr(plan)
        print(plan, "\n", flush=True)
        self.ops = self._ops(plan)

    def check(self) -> None:
        variants = {"streamed, PyTorch operations, float32": (torch.float32, Ops())}
        if self.cuda:
            from python_backends.code2wav.plan import FLOAT32_PLAN
            from python_backends.code2wav.triton_ops import TritonOps

            variants["streamed, kernels, float32"] = (torch.float32, TritonOps(FLOAT32_PLAN))
            variants["streamed, kernels, bfloat16"] = (torch.bfloat16, self.ops)
        rows = check.compare(self.config, self.tensors, self.device, variants, 90)
        self.figures["check"] = rows
        header = ["variant", "largest", "relative", "std", "peak"]
        cells = [[row.get(name, "") for name in header] for row in rows]
        print(table("Against transformers' unchunked float32 forward", header, cells), flush=True)
        bounds = {"float32": 1e-4 if self.cuda else 1e-5}
        half = next(row["relative"] for row in rows if row["variant"].startswith("transformers bfloat16"))
        for row in rows[2:]:
            name = row["variant"]
            right = row["relative"] < 1.1 * half if "bfloat16" in name else row["largest"] < bounds["float32"]
            print(f"{name}: {'right' if right else 'WRONG'}")
            self.failed |= not right
        print(flush=True)

    def operations(self) -> None:
        from scripts.code2wav_bench.debug import check_operations

        found = check_operations(self.config, self.parameters, self.ops, self.device, self.dtype)
        bound = 0.02 if self.dtype == torch.bfloat16 else 1e-5
        self.failed |= not all(worst.error < bound for worst in found)
        self.figures["operations"] = rows = [[worst.operation, worst.error, worst.call] for worst in found]
        print(table("Operations against PyTorch's", ["operation", "largest relative error", "call"], rows), flush=True)

    def parts(self) -> None:
        model, state = self._model()
        found = steps.part_times(model, state, self.streams, 25, self.device)
        self.figures["parts"] = found
        rows = [[name, ms] for name, ms in found.items()] + [["sum", sum(found.values())]]
        print(table(f"Parts of a step of {self.streams} × 25 frames", ["part", "ms"], rows), flush=True)

    def steps(self) -> None:
        model, state = self._model()
        many = self.streams
        shapes = [(1, 1), (1, 4), (1, 25), (many // 8, 25), (many // 2, 25), (many, 1), (many, 4), (many, 25)]
        rows, per_frame = [], steps.floating_point_per_frame(self.config)
        for streams, frames in shapes:
            ms = median_ms(steps.Stepper(model, state, streams, frames, self.device), self.device)
            rows.append([streams, frames, ms, 80 * streams * frames / ms, streams * frames * per_frame / ms / 1e9])
        self.figures["steps"] = rows
        self.figures["state_bytes_per_stream"] = state.bytes_per_stream()
        header = ["streams", "frames", "ms", "× real time", "TFLOP/s"]
        print(table("Steps (graph replay)" if self.cuda else "Steps", header, rows))
        print(f"streaming state: {state.bytes_per_stream() / 1e6:.2f} MB a stream\n", flush=True)

    def baseline(self) -> None:
        model, state = self._model()
        theirs = check.transformers_model(self.config, self.tensors, self.device, self.dtype)
        many, rows = self.streams, []
        fresh = Batch(torch.arange(many, device=self.device), torch.zeros(many, dtype=torch.int64, device=self.device))
        for chunk in (4, 25):
            ways = {
                "streaming state (ours)": median_ms(steps.Stepper(model, state, many, chunk, self.device), self.device),
                "re-decoding, our kernels": steps.redecode_ms(
                    lambda codes: model.forward(codes, fresh, state), self.config, many, chunk, self.device
                ),
                "re-decoding, transformers": steps.redecode_ms(
                    lambda codes: theirs(codes.transpose(1, 2)), self.config, many, chunk, self.device
                ),
            }
            ours = ways["streaming state (ours)"]
            for way, ms in ways.items():
                rate = many * chunk * self.config.samples_per_frame / SAMPLE_RATE / ms * 1000
                rows.append({"way": way, "chunk": chunk, "ms": ms, "audio_s_per_s": rate, "slower": ms / ours})
        self.figures["baseline"] = rows
        print(
            table(
                f"{many} streams: new frames only, against decoding 25 frames of left context again",
                ["way", "new frames", "ms", "audio s/s", "× our time"],
                [list(row.values()) for row in rows],
            ),
            flush=True,
        )

    def engine(self) -> None:
        options = Code2WavOptions(
            device=self.device,
            dtype="bfloat16" if self.cuda else "float32",
            max_num_seqs=self.streams,
            load_format="dummy",
            frame_buckets=(1, 25),
            batch_buckets=(1, self.streams),
        )
        if self.cuda:
            build.H200_PLAN = self.ops.plan
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "config.json"
            path.write_text(json.dumps({"code2wav_config": asdict(self.config)}))
            found = steps.engine_figures(str(path), options, 8 if self.cuda else 2, 25)
        if self.cuda:
            found["peak_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
        self.figures["engine"] = found
        print(table("Engine, from feed to sink", list(found), [list(found.values())]), flush=True)

    def images(self) -> None:
        from scripts.code2wav_bench import picture

        target = Path(self.arguments.images)
        target.mkdir(parents=True, exist_ok=True)
        model, _ = self._model()
        codes = steps.codes_for(self.config, 1, 100, "cpu")[0]
        ours = picture.decode_streaming(model, codes, self.device)
        again = picture.decode_again(model, codes, self.device)
        theirs = check.transformers_model(self.config, self.tensors, self.device, self.dtype)
        with torch.no_grad():
            whole = theirs(codes.T[None].to(self.device))[0, 0].float().cpu().numpy()
        first = self.config.samples(picture.CHUNK) / SAMPLE_RATE
        edges = [first + index * picture.CHUNK * self.config.samples_per_frame / SAMPLE_RATE for index in range(3)]
        picture.spectrograms(ours, again, whole, edges, target / "code2wav_chunk_edges.png")
        if "baseline" in self.figures:
            _throughput_picture(self.figures, self.arguments)


def _throughput_picture(figures: dict, arguments: argparse.Namespace) -> None:
    from scripts.code2wav_bench import picture

    target = Path(arguments.images) / f"code2wav_{arguments.name}.png"
    title = f"Code2Wav, {8 if arguments.toy else 64} streams, {figures['device']}"
    picture.throughput_bars(figures["baseline"], target, title)


def _compile_ahead(processes: int) -> None:
    """Fill Triton's disk cache from several processes; each variant takes seconds to compile."""
    script = str(Path(__file__).resolve())
    shares = [f"{index}/{processes}" for index in range(processes)]
    commands = [[sys.executable, script, "--device", "cuda", "--compile", share] for share in shares]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    for process in running:
        process.wait(timeout=240)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--toy", action="store_true", help="toy sizes")
    parser.add_argument("--tune", action="store_true", help="time every kernel variant and go on with the best")
    parser.add_argument("--sections", default="ceilings,layers,check,parts,steps,baseline,engine,images")
    parser.add_argument("--out", help="JSON file for the figures")
    parser.add_argument("--images", help="directory for pictures")
    parser.add_argument("--name", default="throughput", help="name of the throughput picture")
    parser.add_argument("--plot", help="JSON file of an earlier run: draw its throughput picture, run nothing")
    parser.add_argument("--compile-processes", type=int, default=max(2, min(14, os.cpu_count() or 1)))
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plot:
        _throughput_picture(json.loads(Path(arguments.plot).read_text()), arguments)
        return 0
    bench = Bench(arguments)
    if arguments.compile:
        from scripts.code2wav_bench.layers import compile_share

        share, shares = map(int, arguments.compile.split("/"))
        if share == 0:
            bench.section("check")
        else:
            compile_share(bench.config, bench.parameters, share - 1, shares - 1)
        return 0
    unwanted = {*([] if bench.cuda else ["ceilings", "layers"]), *([] if arguments.tune else ["layers"])}
    unwanted |= set() if arguments.images else {"images"}
    for name in arguments.sections.split(","):
        if name not in unwanted:
            bench.section(name)
            if arguments.out:
                Path(arguments.out).write_text(json.dumps(bench.figures, indent=1))
    return int(bench.failed)


if __name__ == "__main__":
    raise SystemExit(main())
