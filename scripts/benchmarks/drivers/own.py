"""Driver: our own streaming client, a closed loop of concurrent requests."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

from client.streaming import SAMPLE_RATE, AudioChunk, OmniClient, OmniClientError, Summary, TextDelta
from scripts.benchmarks.records import Record
from scripts.benchmarks.workload import Task, request_body


async def _one(client: OmniClient, task: Task) -> Record:
    record = Record(time.monotonic(), expected_audio_s=task.audio_s)
    try:
        async for event in client.stream(request_body(task)):
            now = time.monotonic()
            if isinstance(event, TextDelta):
                record.text_arrived(now)
            elif isinstance(event, AudioChunk):
                record.audio.append((now, event.samples.size / SAMPLE_RATE))
            elif isinstance(event, Summary):
                record.finished, record.summary = now, event.body
    except OmniClientError as error:
        record.error = f"{error.code}: {error}"
    return record


async def _run(url: str, tasks: list[Task], concurrency: int, ready: Callable[[], object]) -> list[Record]:
    waiting, records = iter(tasks), []
    async with OmniClient(url) as client:
        await client.wait_ready(60)
        ready()

        async def worker() -> None:
            for task in waiting:
                records.append(await _one(client, task))

        await asyncio.gather(*(worker() for _ in range(concurrency)))
    return records


def _child(pipe: Connection, barrier: Barrier, url: str, tasks: list[Task], concurrency: int) -> None:
    pipe.send(asyncio.run(_run(url, tasks, concurrency, barrier.wait)))


def run(url: str, tasks: list[Task], concurrency: int, processes: int | None = None) -> list[Record]:
    """Send `tasks`, `concurrency` at a time, each when one before has ended.

    One process of ours keeps up with some two thousand responses a second; a machine with cores to spare shares the
    load out over `processes`, so that what is measured is the server and not the client.
    """
    if processes is None:
        processes = min(concurrency, max(1, len(os.sched_getaffinity(0)) // 4), 8)
    if processes == 1:
        return asyncio.run(_run(url, tasks, concurrency, lambda: None))
    context = multiprocessing.get_context("spawn")
    barrier, pipes, children = context.Barrier(processes), [], []
    for at in range(processes):
        pipe, end = context.Pipe(duplex=False)
        share = concurrency // processes + (at < concurrency % processes)
        child = context.Process(target=_child, args=(end, barrier, url, tasks[at::processes], share), daemon=True)
        child.start()
        end.close()
        pipes.append(pipe)
        children.append(child)
    try:
        return [record for pipe in pipes for record in pipe.recv()]
    except EOFError:
        raise RuntimeError("a process of the load driver ended before its requests did") from None
    finally:
        for child in children:
            child.join(10)
