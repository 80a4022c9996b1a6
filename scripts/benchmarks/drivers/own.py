"""Driver: our own streaming client, a closed loop of concurrent requests."""

from __future__ import annotations

import asyncio
import time

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


async def _run(url: str, tasks: list[Task], concurrency: int) -> list[Record]:
    waiting, records = iter(tasks), []
    async with OmniClient(url) as client:

        async def worker() -> None:
            for task in waiting:
                records.append(await _one(client, task))

        await asyncio.gather(*(worker() for _ in range(concurrency)))
    return records


def run(url: str, tasks: list[Task], concurrency: int) -> list[Record]:
    """Send `tasks`, `concurrency` at a time, each when one before has ended."""
    return asyncio.run(_run(url, tasks, concurrency))
