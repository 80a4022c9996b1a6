"""What the runner keeps of each request, the files it writes, and their summary."""

from __future__ import annotations

import json
import uuid
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np

from client.streaming import SAMPLE_RATE, Failed
from client.wav import WavWriter


@dataclass
class Result:
    """How one request went. Times in seconds since it was sent; None: it did not come to that."""

    index: int
    id: str = ""
    files: list[str] = field(default_factory=list)
    error: Failed | None = None
    first_text_s: float | None = None
    first_audio_s: float | None = None
    chunks: int = 0
    audio_s: float = 0.0
    latency_s: float = 0.0
    finish_reason: str | None = None
    seed: int | None = None
    stats: dict | None = None

    def __post_init__(self) -> None:
        self.id = self.id or f"req_{self.index}_{uuid.uuid4().hex[:8]}"

    def add_chunk(self, samples: int) -> None:
        """Count a chunk of audio."""
        self.chunks += 1
        self.audio_s += samples / SAMPLE_RATE

    @property
    def timings(self) -> str:
        """One line for people."""
        text, audio = _seconds(self.first_text_s), _seconds(self.first_audio_s)
        heard = f"{self.chunks} chunks, {self.audio_s:.2f} s of audio"
        return f"{self.id}: first text {text}, first audio {audio} (TTFA), {heard}, end to end {self.latency_s:.3f} s"

    @property
    def outcome(self) -> str:
        """One line for people: its files, or why there are none."""
        if self.error is not None:
            kept = f" (kept: {' '.join(self.files)})" if self.files else ""
            return f"{self.id}: [ERROR] {self.error.code}: {self.error.reason}{kept}"
        return f"{self.id}: {self.latency_s:.3f} s, {' '.join(self.files) or 'no speech'}"

    def as_json(self) -> dict:
        values = {name: value for name, value in vars(self).items() if name not in ("error", "stats")}
        error = None if self.error is None else {"code": self.error.code, "reason": self.error.reason}
        return values | {"error": error} | ({} if self.stats is None else {"stats": self.stats})


class Output:
    """The files of one request: `{id}.txt` and `output_{id}.wav` in `directory`.

    They get their names when they are whole; with `stream_audio` the WAV has its name, and is valid, from the first
    chunk on. All methods raise OSError.
    """

    def __init__(self, directory: Path, name: str, stream_audio: bool) -> None:
        self._text_file, self._wav_file = directory / f"{name}.txt", directory / f"output_{name}.wav"
        self._stream_audio = stream_audio
        self._text: list[str] = []
        self._chunks: list[np.ndarray] = []
        self._wav: WavWriter | None = None

    def add_text(self, text: str) -> None:
        self._text.append(text)

    def add_audio(self, samples: np.ndarray) -> None:
        if not self._stream_audio:
            self._chunks.append(samples)
            return
        if self._wav is None:
            self._wav = WavWriter(self._wav_file)
        self._wav.write(samples)

    def finish(self, prompt: str, wants_text: bool) -> None:
        """The request has its answer: write what is not written yet, and a text also when it is empty."""
        if self._chunks:
            part = self._wav_file.with_name(self._wav_file.name + ".unfinished")
            try:
                self._wav = WavWriter(part)
                for chunk in self._chunks:
                    self._wav.write(chunk)
                self._wav.close()
                _rename(part, self._wav_file)
            finally:
                part.unlink(missing_ok=True)
        if wants_text:
            part = self._text_file.with_name(self._text_file.name + ".unfinished")
            try:
                part.write_text(f"{prompt}\n\n{''.join(self._text)}\n", encoding="utf-8")
                _rename(part, self._text_file)
            finally:
                part.unlink(missing_ok=True)

    def close(self) -> list[str]:
        """The files that there are, however the request ended."""
        if self._wav is not None:
            self._wav.close()
        return [str(path) for path in (self._text_file, self._wav_file) if path.exists()]


class Summary:
    """Counts and times of a batch: some numbers a request, whatever their answers held.

    `json_file`: each result goes there at once, under another name until `finish`. OSError when it cannot be made;
    later ones are `json_error`. Use as a context manager: nothing unfinished stays.
    """

    def __init__(self, total: int, json_file: Path | None) -> None:
        self.total, self.succeeded, self.ended = total, 0, 0
        self.audio_s = 0.0
        self.json_error: OSError | None = None
        self._times = {name: array("d") for name in ("rtf", "ttft_s", "ttfa_s", "latency_s")}
        self._json_file = json_file
        self._json: TextIO | None = None
        if json_file is not None:
            if json_file.exists():
                raise FileExistsError(17, "File exists")
            self._part = json_file.with_name(json_file.name + ".part")
            self._json = self._part.open("x", encoding="utf-8")
            self._write('{"requests": [')

    def __enter__(self) -> Summary:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._json is not None:
            self._part.unlink(missing_ok=True)

    def _write(self, text: str) -> None:
        if self._json is None or self.json_error is not None:
            return
        try:
            self._json.write(text)
            self._json.flush()
        except OSError as error:
            self.json_error = error

    def add(self, result: Result) -> None:
        """Count one that has ended."""
        self._write((",\n" if self.ended else "\n") + json.dumps(result.as_json(), ensure_ascii=False))
        self.ended += 1
        if result.error is not None:
            return
        self.succeeded += 1
        self.audio_s += result.audio_s
        measured = {"ttft_s": result.first_text_s, "ttfa_s": result.first_audio_s, "latency_s": result.latency_s}
        if result.audio_s:
            measured["rtf"] = result.latency_s / result.audio_s
        for name, value in measured.items():
            if value is not None:
                self._times[name].append(value)

    def finish(self, wall_s: float, status: int) -> dict:
        """The summary without the requests' own facts; the JSON file is complete then."""
        facts: dict = {"total": self.total, "succeeded": self.succeeded, "not_started": self.total - self.ended}
        facts |= {"status": status, "wall_s": wall_s, "audio_s": self.audio_s}
        facts["speed"] = self.audio_s / wall_s if wall_s else None
        for name, times in self._times.items():
            facts[name] = _statistics(times)
        self._write("\n],\n" + json.dumps(facts)[1:] + "\n")
        if self._json_file is not None and self.json_error is None:
            try:
                _rename(self._part, self._json_file)
            except OSError as error:
                self.json_error = error
        return facts


def summary_lines(facts: dict) -> list[str]:
    """The facts of `Summary.finish` for people."""
    lines = [f"Total: {facts['succeeded']}/{facts['total']} succeeded"]
    if facts["not_started"]:
        lines[0] += f", {facts['not_started']} not started"
    lines.append(f"Wall time: {facts['wall_s']:.3f} s, audio: {facts['audio_s']:.2f} s")
    if facts["rtf"] is not None:
        rtf, speed = facts["rtf"], facts["speed"]
        lines.append(f"Real-time factor (latency ÷ audio): mean {rtf['mean']:.3f}, p95 {rtf['p95']:.3f}")
        lines.append(f"Speed (audio ÷ wall time): {speed:.2f} ×")
    for name, words in (("ttft_s", "TTFT"), ("ttfa_s", "TTFA"), ("latency_s", "Latency")):
        if facts[name] is not None:
            lines.append(f"{words}: " + ", ".join(f"{key} {value:.3f} s" for key, value in facts[name].items()))
    return lines


def _statistics(values: array) -> dict[str, float] | None:
    if not values:
        return None
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return {"mean": float(np.mean(values)), "p50": float(p50), "p95": float(p95), "p99": float(p99)}


def _rename(source: Path, target: Path) -> None:
    if target.exists():
        raise FileExistsError(17, "File exists", str(target))
    source.rename(target)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"
