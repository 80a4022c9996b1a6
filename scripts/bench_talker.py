"""Times the Talker: step by batch and part, prefill, GPU idle between steps, output paths, agreement across batches.

On a GPU at published sizes, with random weights built on the device:
    python scripts/bench_talker.py --config CONFIG_JSON --device cuda --out results
On the CPU at toy size:
    python scripts/bench_talker.py --config CONFIG_JSON --toy --batches 1 2 --out results
The part "libraries" puts the backbone on vLLM's kernels beside ours and needs an installed vLLM for CUDA.
Writes talker.json, talker.md and, where matplotlib is installed, talker.png into `--out`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# Also for the processes that compile kernels; transformers warns about each rope section of every config it reads.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from python_backends.talker.options import TalkerOptions
from python_backends.talker.runner import TalkerRunner
from scripts.talker_bench import engine_runs, equality, kernel_checks, library_kernels, report, step_times, sweep

PARTS = ("checks", "steps", "libraries", "sweep", "prefill", "engine", "equality", "agreement")
TOY = {
    "text_config": dict(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=32,
    ),
    "code_predictor_config": dict(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    ),
}


def toy_config(path: Path, folder: Path) -> Path:
    """Write a copy of the config with toy widths and give its path."""
    config = json.loads(path.read_text())
    for part, sizes in TOY.items():
        config["talker_config"][part].update(sizes)
    config["talker_config"]["thinker_hidden_size"] = 64
    target = folder / "toy_config.json"
    target.write_text(json.dumps(config))
    return target


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="config.json with the sizes to build")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--toy", action="store_true", help="shrink all widths")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 128])
    parser.add_argument("--context", type=int, default=1000, help="rows of context of every stream")
    parser.add_argument("--frames", type=int, default=60, help="frames a stream of the engine runs")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sweep", nargs="*", default=[], help="kinds of kernel to sweep; none for all")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    config = toy_config(args.config, args.out) if args.toy else args.config
    options = TalkerOptions(
        device=args.device,
        dtype="bfloat16" if args.device.startswith("cuda") else "float32",
        max_num_seqs=max(args.batches),
        max_model_len=2048,
        load_format="dummy",
        cuda_graphs=False,
    )
    started = time.perf_counter()
    chosen = sweep.variants(args.sweep, args.batches) if "sweep" in args.parts else []
    if args.device.startswith("cuda"):
        whole = {"engine", "equality", "agreement"} & set(args.parts)
        built = sweep.precompile(config, sorted({*args.batches, *(options.buckets if whole else ())}), chosen)
        print(f"[{built} kernel builds took {time.perf_counter() - started:.1f} s]", flush=True)
    started = time.perf_counter()
    runner = TalkerRunner(config, options)
    name = torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU"
    results: dict = {"device": name, "torch": torch.__version__, "context": args.context, "toy": args.toy}
    results["load_s"] = round(time.perf_counter() - started, 2)

    def part(which: str, run) -> None:
        if which not in args.parts:
            return
        begun = time.perf_counter()
        try:
            results[which] = run()
        except Exception as error:
            results[which] = {"error": f"{type(error).__name__}: {error}"}
            print(f"{which} failed: {error!r}", flush=True)
        print(f"[{which} took {time.perf_counter() - begun:.1f} s]", flush=True)
        report.save(results, args.out)

    part("checks", lambda: kernel_checks.run(runner))
    part("steps", lambda: step_times.run(runner, args.batches, args.context))
    part("libraries", lambda: library_kernels.run(runner, args.batches, args.context))
    part("sweep", lambda: sweep.run(runner, args.context, chosen))
    part("prefill", lambda: step_times.prefill(runner, prompts=min(64, max(args.batches)), rows=128))
    engine_options = replace(options, cuda_graphs=True, max_num_seqs=min(64, max(args.batches)))
    part("engine", lambda: engine_runs.paths(config, engine_options, args.frames))
    part("equality", lambda: equality.run(config, engine_options, min(args.frames, 40)))
    part("agreement", lambda: engine_runs.agreement(config, engine_options, min(args.frames, 40)))
    print(report.table(results))


if __name__ == "__main__":
    main()
