"""Driver for other servers: OpenAI-compatible streaming chat completions with audio."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from dataclasses import dataclass

import aiohttp

from scripts.benchmarks.records import SAMPLE_RATE, Record
from scripts.benchmarks.workload import Task

WAV_HEADER_BYTES = 44


@dataclass(frozen=True)
class OpenAiServer:
    """Where and how to ask. `extra` is merged into each request's body; `{text_ids}` and `{frames}` of its strings
    are replaced by the task's numbers, so that any server's way of forcing lengths can be spelled out.
    """

    url: str
    model: str
    extra: dict


def vllm_omni_lengths() -> dict:
    """`extra` that forces lengths on vLLM-Omni: sampling parameters by stage."""
    return {
        "sampling_params_list": [
            {"temperature": 0.0, "max_tokens": "{text_ids}", "ignore_eos": True},
            {"temperature": 0.9, "top_k": 50, "max_tokens": "{frames}", "ignore_eos": True, "repetition_penalty": 1.05},
            {"temperature": 0.0, "max_tokens": 65536},
        ]
    }


def body(server: OpenAiServer, task: Task) -> dict:
    """The JSON of one request."""
    request = {
        "model": server.model,
        "messages": [{"role": "user", "content": task.prompt}],
        "modalities": ["text", "audio"],
        "audio": {"format": "pcm16", "voice": "Ethan"},
        "stream": True,
        "max_tokens": task.text_ids,
        "seed": task.seed,
    }
    return request | _filled(server.extra, {"{text_ids}": task.text_ids, "{frames}": task.frames})


def _filled(value: object, numbers: dict[str, int]):
    if isinstance(value, dict):
        return {name: _filled(item, numbers) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, numbers) for item in value]
    return numbers.get(value, value) if isinstance(value, str) else value


def read_event(record: Record, event: dict, now: float) -> None:
    """Take one server-sent event: OpenAI's `delta.audio.data`, or vLLM-Omni's audio in `delta.content`."""
    for choice in event.get("choices", ()):
        delta = choice.get("delta") or {}
        audio = (delta.get("audio") or {}).get("data")
        if event.get("modality") == "audio":
            audio = audio or delta.get("content")
        elif delta.get("content"):
            record.text_arrived(now)
        if audio:
            record.audio.append((now, _seconds(base64.b64decode(audio))))


def _seconds(data: bytes) -> float:
    """Length of PCM16 samples at 24 kHz, with or without a WAV header."""
    if data[:4] == b"RIFF":
        data = data[WAV_HEADER_BYTES:]
    return len(data) / 2 / SAMPLE_RATE


async def _one(session: aiohttp.ClientSession, server: OpenAiServer, task: Task) -> Record:
    record = Record(time.monotonic())
    try:
        async with session.post(f"{server.url}/v1/chat/completions", json=body(server, task)) as response:
            if response.status != 200:
                record.error = f"HTTP {response.status}: {(await response.text())[:300]}"
                return record
            async for line in response.content:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    break
                event = json.loads(data)
                if "error" in event:
                    record.error = str(event["error"])
                    return record
                read_event(record, event, time.monotonic())
        record.finished = time.monotonic()
        if not record.audio:
            record.error = "no audio"
    except (aiohttp.ClientError, ValueError, TimeoutError) as error:
        record.error = f"{type(error).__name__}: {error}"
    return record


async def _run(server: OpenAiServer, tasks: list[Task], concurrency: int) -> list[Record]:
    waiting, records = iter(tasks), []
    timeout = aiohttp.ClientTimeout(total=None, sock_read=300)
    # Audio arrives as one line of base64 each: longer than the reader's usual 64 KiB.
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=64 << 20) as session:

        async def worker() -> None:
            for task in waiting:
                records.append(await _one(session, server, task))

        await asyncio.gather(*(worker() for _ in range(concurrency)))
    return records


def run(server: OpenAiServer, tasks: list[Task], concurrency: int) -> list[Record]:
    """Send `tasks`, `concurrency` at a time. Servers may end speech early: lengths are reported, not enforced."""
    return asyncio.run(_run(server, tasks, concurrency))
