"""The files that the runner writes, and what it keeps in memory."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile

from client.batch import Batch
from client.options import parse
from client.results import Summary
from client.streaming import AudioChunk, TextDelta
from client.streaming import Summary as Closing
from client.wav import WavWriter


def test_a_wav_is_valid_after_every_write(tmp_path):
    """Another reader, at every moment between two writes, finds whole samples; the writer takes both of its types."""
    wav = WavWriter(tmp_path / "a.wav")
    written = np.empty(0, np.int16)
    rng = np.random.default_rng(0)
    for size in (0, 1, 1920, 7):
        chunk = rng.uniform(-1.2, 1.2, size).astype(np.float32)
        wav.write(chunk)
        written = np.concatenate([written, np.rint(np.clip(chunk, -1, 1) * 32767).astype(np.int16)])
        samples, _ = soundfile.read(tmp_path / "a.wav", dtype="int16")
        np.testing.assert_array_equal(samples, written)
    wav.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]
    with pytest.raises(FileExistsError):
        WavWriter(tmp_path / "a.wav")


def test_memory_does_not_grow_with_the_prompts(tmp_path):
    """`--py-generator`: a thousand results leave numbers alone behind, and the JSON file has them all."""

    class Answers:
        """Answers of a server, without one: a second of speech each."""

        async def events(self, body, deadline_s=None):
            yield TextDelta("A thousand of these. " * 20)
            yield AudioChunk(np.zeros(24000, np.int16))
            yield Closing({"finish_reason": "stop", "seed": 1})

    many = 1000
    args, _ = parse(
        ["-q", "text", "--py-generator", "--num-prompts", str(many), "--max-in-flight", "4", "--quiet"], "run"
    )
    (tmp_path / "out").mkdir()
    seen = []

    class Watched(Summary):
        def add(self, result) -> None:
            super().add(result)
            for path in result.files:
                Path(path).unlink()
            if self.ended in (100, many):
                seen.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        with Watched(many, tmp_path / "summary.json") as summary:
            status = asyncio.run(Batch(args, Answers(), tmp_path / "out", summary).run(["Hello"], []))
    finally:
        tracemalloc.stop()
    assert status == 0 and summary.succeeded == many
    assert seen[1] - seen[0] < 300_000, seen
