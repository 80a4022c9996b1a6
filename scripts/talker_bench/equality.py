"""SHA-256 of all codes for both output paths, several chunk sizes and other batch mates of the same bucket."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from python_backends.config.stage import ChunkSchedule
from python_backends.talker.engine import TalkerEngine
from python_backends.talker.model.shapes import read_shape
from python_backends.talker.options import TalkerOptions
from scripts.talker_bench.engine_runs import PROMPT_ROWS, HashingSink, open_streams, run_all

MATES = 1000  # numbers of streams that no other run has


@dataclass(frozen=True)
class Case:
    """One way to run the same streams. `strangers`: that share of the batch is other streams."""

    name: str
    asynchronous: bool = True
    schedule: ChunkSchedule = ChunkSchedule(4, 25)
    strangers: bool = False


CASES = (
    Case("asynchronous, chunks 4 then 25"),
    Case("synchronous, chunks 4 then 25", asynchronous=False),
    Case("asynchronous, chunks of 1", schedule=ChunkSchedule(1, 1)),
    Case("synchronous, chunks of 1", asynchronous=False, schedule=ChunkSchedule(1, 1)),
    Case("asynchronous, chunks of 3 then 7", schedule=ChunkSchedule(3, 7)),
    Case("asynchronous, whole", schedule=ChunkSchedule(steady=0)),
    Case("asynchronous, other mates in other slots", strangers=True),
)


def run(config: Path, options: TalkerOptions, frames: int) -> dict:
    """Share of streams whose digest is that of the first case.

    All prompts are computed in one portion, so that every step of every stream runs in the bucket of a full batch.
    """
    ids, count = read_shape(config).ids, options.max_num_seqs
    table: dict = {"frames": frames, "streams": count}
    engines, first = {}, {}
    for case in CASES:
        if case.asynchronous not in engines:
            sink = HashingSink()
            rows = count * (PROMPT_ROWS + 8)
            chosen = replace(options, async_output=case.asynchronous, max_prefill_rows=rows)
            engines[case.asynchronous] = (TalkerEngine(config, chosen, sink), sink)
        engine, sink = engines[case.asynchronous]
        sink.reset()
        own = list(range(count // 2 if case.strangers else count))
        mates = list(range(MATES, MATES + count - len(own)))
        open_streams(engine, ids, mates + own, frames, case.schedule)
        run_all(engine, sink, count)
        digests = {number: sink.hashes[str(number)].hexdigest() for number in own}
        first = first or digests
        same = sum(digests[number] == first[number] for number in own)
        table[case.name] = f"{same}/{len(own)}"
        print(f"equality, {case.name}: {table[case.name]}", flush=True)
    table["different_streams"] = len(set(first.values()))
    for engine, _ in engines.values():
        engine.close()
    return table
