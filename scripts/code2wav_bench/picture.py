"""What re-decoding does at chunk edges, as spectrograms beside ours; and bars of the timings."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import torch

from python_backends.code2wav.model import Code2WavModel
from python_backends.code2wav.ops import Batch
from python_backends.code2wav.options import SAMPLE_RATE
from python_backends.code2wav.state import StreamState

matplotlib.use("Agg")
from matplotlib import pyplot as plt

CHUNK, LEFT_CONTEXT = 25, 25


def decode_streaming(model: Code2WavModel, codes: torch.Tensor, device: str) -> np.ndarray:
    """Our way: chunk after chunk with streaming state. `codes`: [frames, quantizers]."""
    state = StreamState(model.config, model.parameters, 1, device, model.parameters.embedding.dtype)
    parts = [
        _forward(model, state, codes[start : start + CHUNK], start, device) for start in range(0, len(codes), CHUNK)
    ]
    return np.concatenate(parts)[model.config.startup_samples :]


def decode_again(model: Code2WavModel, codes: torch.Tensor, device: str) -> np.ndarray:
    """The peers' way: each chunk as a whole utterance behind `LEFT_CONTEXT` old frames, whose samples are cut off.

    The trimmed end of every chunk is lost; it is filled with silence here, so that the chunks stay aligned.
    """
    config, parts = model.config, []
    for start in range(0, len(codes), CHUNK):
        state = StreamState(config, model.parameters, 1, device, model.parameters.embedding.dtype)
        context = min(start, LEFT_CONTEXT)
        whole = _forward(model, state, codes[start - context : start + CHUNK], 0, device)[config.startup_samples :]
        part = whole[context * config.samples_per_frame :]
        missing = (CHUNK * config.samples_per_frame - len(part)) if start + CHUNK < len(codes) else 0
        parts.append(np.pad(part, (0, missing)))
    return np.concatenate(parts)


@torch.no_grad()
def _forward(model, state, codes: torch.Tensor, position: int, device: str) -> np.ndarray:
    batch = Batch(torch.zeros(1, dtype=torch.int64, device=device), torch.full((1,), position, device=device))
    return model.forward(codes[None].to(device), batch, state)[0].cpu().numpy()


def spectrograms(ours: np.ndarray, again: np.ndarray, whole: np.ndarray, edges_s: list[float], path: Path) -> None:
    """Both ways around one chunk edge, and the distance of both from the unchunked forward."""
    figure, axes = plt.subplots(3, 1, figsize=(10, 8), constrained_layout=True)
    middle = edges_s[1]
    for axis, waveform, title in (
        (axes[0], ours, "streaming state (ours), around a chunk edge"),
        (axes[1], again, "re-decoding 25 frames of left context, around the same edge"),
    ):
        # A floor far below the audio keeps the logarithm of the silent gap finite.
        audible = waveform + 1e-8 * np.random.default_rng(0).standard_normal(len(waveform))
        axis.specgram(audible, NFFT=256, Fs=SAMPLE_RATE, noverlap=224, scale="dB", cmap="magma", vmin=-110, vmax=-45)
        axis.set(title=title, ylabel="Hz", xlim=(middle - 0.15, middle + 0.15), xlabel="seconds")
        axis.axvline(middle, color="cyan", linewidth=0.8, linestyle="--")
    length, window = min(len(ours), len(again), len(whole)), 240
    count = length // window
    seconds = np.arange(count) * window / SAMPLE_RATE
    for waveform, label in ((again, "re-decoding"), (ours, "streaming state (ours)")):
        error = (waveform[: count * window] - whole[: count * window]).reshape(count, window)
        axes[2].plot(seconds, 20 * np.log10(np.sqrt((error**2).mean(1)) + 1e-9), label=label, linewidth=1)
    level = 20 * np.log10(np.sqrt((whole**2).mean()))
    axes[2].axhline(level, color="grey", linestyle=":", label="level of the audio")
    axes[2].set(title="distance from the unchunked forward (10 ms windows)", ylabel="dB", xlabel="seconds")
    axes[2].legend(loc="center right")
    for edge in edges_s:
        axes[2].axvline(edge, color="cyan", linewidth=0.8, linestyle="--")
    figure.savefig(path, dpi=90)
    plt.close(figure)


def throughput_bars(rows: list[dict], path: Path, title: str) -> None:
    """Bars: seconds of audio per second at each chunk size, ours against re-decoding."""
    figure, axis = plt.subplots(figsize=(8, 4), constrained_layout=True)
    names = list(dict.fromkeys(row["way"] for row in rows))
    chunks = list(dict.fromkeys(row["chunk"] for row in rows))
    for index, name in enumerate(names):
        values = [
            next(row["audio_s_per_s"] for row in rows if row["way"] == name and row["chunk"] == c) for c in chunks
        ]
        places = np.arange(len(chunks)) + index * 0.8 / len(names)
        axis.bar_label(axis.bar(places, values, 0.8 / len(names), label=name), fmt=_rate, fontsize=8)
    axis.set_xticks(np.arange(len(chunks)) + 0.4 - 0.4 / len(names), [f"{chunk}-frame chunks" for chunk in chunks])
    axis.set(ylabel="seconds of audio per second", title=title)
    axis.margins(y=0.3)
    axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
