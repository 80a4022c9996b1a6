"""Times the Thinker on vLLM, with hidden-row capture on and off, each in a process of its own.

On a GPU at the sizes of a config, random weights:
    python scripts/bench_thinker.py --sizes CONFIG_JSON --device cuda --out results
On the CPU at the sizes of the tiny checkpoint:
    python scripts/bench_thinker.py --batches 1 4 --steps 12 --audio-tokens 260 --out results
Writes thinker.json and thinker.md into `--out`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.bench.table import table

VARIANTS = ("capture", "plain")
# What was tried on Hopper; FlashInfer and DeepGEMM are not needed.
CUDA_ARGS = {"attention_backend": "FLASH_ATTN", "moe_backend": "triton", "gpu_memory_utilization": 0.85}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=Path, help="config.json with the sizes to build (default: tiny)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 512, 1024, 2000], help="lengths of prompts")
    parser.add_argument("--steps", type=int, default=120, help="ids of each stream in the step times")
    parser.add_argument("--audio-tokens", type=int, default=4095, help="length of the audio prefill")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--engine-args", type=json.loads, default={}, help="JSON object for vLLM's EngineArgs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--one", choices=VARIANTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_one(args: argparse.Namespace) -> dict:
    """Measure one variant in this process."""
    from python_backends.thinker.options import ThinkerOptions
    from scripts.bench import thinker as measure

    capture = args.one == "capture"
    engine_args = {
        "load_format": "dummy",
        "max_model_len": max(4096, args.audio_tokens + 1024),
        "skip_mm_profiling": True,
        **(CUDA_ARGS if args.device == "cuda" else {}),
        **args.engine_args,
    }
    bench = measure.Bench(
        ThinkerOptions(
            model=str(args.out / "checkpoint"),
            device=args.device,
            dtype="bfloat16" if args.sizes else "float32",
            max_num_seqs=max(args.batches),
            capture=capture,
            engine_args=engine_args,
        )
    )
    result: dict = {"start_s": bench.started_s}
    measure.step_ms(bench, 1, 128, 8)
    result["first_token_ms"] = {
        str(tokens): measure.first_token_ms(bench, tokens, args.repeats) for tokens in args.prompts
    }
    result["step_ms"] = {str(batch): measure.step_ms(bench, batch, 128, args.steps) for batch in args.batches}
    result["audio_prefill"] = measure.prefill_ms(bench, args.audio_tokens, args.repeats, capture)
    if capture:
        result["rows"] = measure.check_rows(bench)
    bench.core.close()
    return result


def report(results: dict[str, dict]) -> str:
    """A Markdown table, and what capture costs."""
    first = next(iter(results.values()))
    tokens = first["audio_prefill"]["tokens"]
    rows: dict[str, Callable[[dict], float | None]] = {"start, s": lambda r: r["start_s"]}
    for length in first["first_token_ms"]:
        rows[f"first id, prompt of {length}, ms"] = lambda r, at=length: r["first_token_ms"][at]
    for batch in first["step_ms"]:
        rows[f"step at batch {batch}, ms"] = lambda r, at=batch: r["step_ms"][at]
    rows[f"first id, {tokens}-token audio prompt, no rows, ms"] = lambda r: r["audio_prefill"]["first_id_ms"]
    rows["the same with rows, ms"] = lambda r: r["audio_prefill"].get("first_id_with_rows_ms")
    rows["rows at the sink, ms"] = lambda r: r["audio_prefill"].get("rows_ready_ms")
    lines = [table(["", *results], [[name, *map(value, results.values())] for name, value in rows.items()])]
    if len(results) == 2:
        on, off = results["capture"], results["plain"]
        for batch, time in on["step_ms"].items():
            lines.append(f"Capture costs {100 * (time / off['step_ms'][batch] - 1):+.2f}% of a step at batch {batch}.")
        whole = on["audio_prefill"]["first_id_with_rows_ms"] / off["audio_prefill"]["first_id_ms"]
        lines.append(f"Capture costs {100 * (whole - 1):+.2f}% of the audio prefill.")
    return "\n\n".join(lines) + "\n"


def main() -> int:
    args = arguments()
    if args.one:
        result = run_one(args)
        (args.out / f"{args.one}.json").write_text(json.dumps(result))
        return 0
    make = [sys.executable, str(Path(__file__).with_name("make_tiny_checkpoint.py")), str(args.out / "checkpoint")]
    subprocess.run(make + (["--sizes", str(args.sizes)] if args.sizes else []), check=True)
    results = {}
    for variant in args.variants:
        done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--one", variant])
        if done.returncode:
            # The other variant's figures stand without it.
            print(f"{variant} failed with {done.returncode}", file=sys.stderr)
            continue
        results[variant] = json.loads((args.out / f"{variant}.json").read_text())
    if not results:
        return 1
    (args.out / "thinker.json").write_text(json.dumps(results, indent=1) + "\n")
    table = report(results)
    (args.out / "thinker.md").write_text(table)
    print(json.dumps(results, indent=1))
    print(table)
    return 0 if len(results) == len(args.variants) else 1


if __name__ == "__main__":
    sys.exit(main())
