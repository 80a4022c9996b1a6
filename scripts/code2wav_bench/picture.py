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
    """Three panels: ours, re-decoded, and the distance of both from the unchunked forward."""
    figure, axes = plt.subplots(3, 1, figsize=(11, 8), sharex=True, constrained_layout=True)
    for axis, waveform, title in (
        (axes[0], ours, "streaming state, 25-frame chunks (ours)"),
        (axes[1], again, "re-decoding 25 frames of left context with each chunk"),
    ):
        axis.specgram(waveform, NFFT=512, Fs=SAMPLE_RATE, noverlap=384, scale="dB", cmap="magma", vmin=-140, vmax=-60)
        axis.set(title=title, ylabel="Hz")
    length, window = min(len(ours), len(again), len(whole)), 240
    seconds = np.arange(length // window) * window / SAMPLE_RATE
    for waveform, label in ((again, "re-decoding"), (ours, "ours")):
        error = (waveform - whole)[: length // window * window] if len(waveform) == len(whole) else None
        error = waveform[:length] - whole[:length] if error is None else error
        rms = np.sqrt((error[: length // window * window].reshape(-1, window) ** 2).mean(1))
        axes[2].plot(seconds, 20 * np.log10(rms + 1e-9), label=label, linewidth=1)
    level = 20 * np.log10(np.sqrt((whole**2).mean()))
    axes[2].axhline(level, color="grey", linestyle=":", label="level of the audio")
    axes[2].set(title="distance from the unchunked forward (10 ms windows)", ylabel="dB", xlabel="seconds")
    axes[2].legend(loc="center right")
    for axis in axes:
        for edge in edges_s:
            axis.axvline(edge, color="cyan", linewidth=0.6, alpha=0.7)
    figure.savefig(path, dpi=110)
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
        axis.bar_label(axis.bar(places, values, 0.8 / len(names), label=name), fmt="%.3g", fontsize=8)
    axis.set_xticks(np.arange(len(chunks)) + 0.4 - 0.4 / len(names), [f"{chunk}-frame chunks" for chunk in chunks])
    axis.set(ylabel="seconds of audio per second", title=title)
    axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
