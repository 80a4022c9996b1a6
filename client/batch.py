"""The requests of one run of the runner: some at once, each to its files, all to the summary."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

from client.player import Player
from client.queries import Asked, requests
from client.results import Output, Result, Summary, summary_lines
from client.streaming import AudioChunk, Failed, OmniClient, TextDelta
from client.streaming import Summary as Closing

TIMED_OUT, INTERRUPTED = 124, 130


class Batch:
    """Sends the requests that `args` asks for and writes their files into `directory`."""

    def __init__(self, args: argparse.Namespace, client: OmniClient, directory: Path, summary: Summary) -> None:
        self._args, self._client, self._directory, self._summary = args, client, directory, summary
        self._kept: list[Result] = []
        self._running = 0
        # A single answer can be read as it comes.
        self._live = summary.total == 1 and not args.quiet and "text" in args.modalities
        self._progress = summary.total > 1 and not args.quiet and sys.stderr.isatty()

    async def run(self, texts: list[str], media: list[dict]) -> int:
        """Returns the exit status, also after Ctrl-C and SIGTERM, which cancel what runs."""
        self._limit = asyncio.timeout(self._args.batch_timeout_s)
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        waiting = requests(self._args, texts, media)
        started, status = time.monotonic(), 0
        try:
            async with self._limit, asyncio.TaskGroup() as workers:
                for _ in range(min(self._args.max_in_flight, self._summary.total)):
                    workers.create_task(self._worker(waiting))
        except TimeoutError:
            status = TIMED_OUT
        except asyncio.CancelledError:
            status = INTERRUPTED
            task.uncancel()
        if not status:
            status = int(self._summary.succeeded < self._summary.total)
        self._print_summary(self._summary.finish(time.monotonic() - started, status))
        return status

    async def _worker(self, waiting: Iterator[Asked]) -> None:
        for asked in waiting:
            await self._one(asked)

    async def _one(self, asked: Asked) -> None:
        result = Result(asked.index)
        output = Output(self._directory, result.id, self._args.stream_audio_to_disk)
        player = None if self._args.play is None else Player(self._args.play)
        self._running += 1
        self._show_progress()
        try:
            await self._answer(asked, result, output, player)
            if result.error is None:
                output.finish(asked.prompt, "text" in self._args.modalities)
                if player is not None:
                    await player.finish()
        except OSError as error:
            result.error = Failed("local", f"{error.filename or self._directory}: {error.strerror}")
        except asyncio.CancelledError:
            over = self._limit.expired()
            result.error = Failed("timeout", "the batch took too long") if over else Failed("cancelled", "interrupted")
            raise
        finally:
            if player is not None:
                player.stop()
            result.files = output.close()
            self._running -= 1
            self._summary.add(result)
            self._report(result)

    async def _answer(self, asked: Asked, result: Result, output: Output, player: Player | None) -> None:
        started = time.monotonic()
        try:
            async with aclosing(self._client.events(asked.body, deadline_s=self._args.request_timeout_s)) as events:
                async for event in events:
                    now = time.monotonic() - started
                    if isinstance(event, TextDelta):
                        result.first_text_s = now if result.first_text_s is None else result.first_text_s
                        output.add_text(event.text)
                        if self._live:
                            self._say(event.text, end="")
                    elif isinstance(event, AudioChunk):
                        result.first_audio_s = now if result.first_audio_s is None else result.first_audio_s
                        result.add_chunk(event.samples.size)
                        output.add_audio(event.samples)
                        if player is not None:
                            await player.play(event.samples)
                    elif isinstance(event, Failed):
                        result.error = event
                    elif isinstance(event, Closing):
                        result.finish_reason, result.seed = event.body["finish_reason"], event.body["seed"]
                        if self._args.log_stats:
                            result.stats = {name: event.body[name] for name in ("timings_ms", "stages")}
                        result.latency_s = now
                        return
        finally:
            result.latency_s = result.latency_s or time.monotonic() - started

    def _report(self, result: Result) -> None:
        if self._args.quiet:
            if result.error is not None:
                print(result.outcome, file=sys.stderr)
            return
        self._say("\n" if self._live else "", end="")
        if result.error is None:
            self._say(result.timings)
        if result.stats is not None:
            self._say(f"{result.id}: {result.stats}")
        if self._args.py_generator:
            self._say(result.outcome)
        else:
            self._kept.append(result)
        self._show_progress()

    def _print_summary(self, facts: dict) -> None:
        if self._args.quiet:
            return
        self._say("\nSummary")
        for result in sorted(self._kept, key=lambda result: result.index):
            self._say(result.outcome)
        for line in summary_lines(facts):
            self._say(line)

    def _show_progress(self) -> None:
        if self._progress:
            ended, succeeded = self._summary.ended, self._summary.succeeded
            line = f"{ended}/{self._summary.total} ended, {ended - succeeded} failed, {self._running} running"
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def _say(self, line: str, end: str = "\n") -> None:
        if self._progress:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        try:
            print(line, end=end, flush=True)
        except BrokenPipeError:
            # Whoever read has gone; the files are still wanted.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
