"""Is it right? Streamed in chunks, against transformers' unchunked forward."""

from __future__ import annotations

import numpy as np
import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.model import Code2WavModel
from python_backends.code2wav.ops import Batch, Ops
from python_backends.code2wav.parameters import build_parameters
from python_backends.code2wav.state import StreamState

CUTS = (1, 4, 25, 2, 16, 8, 25, 7)


def transformers_model(config: Code2WavConfig, tensors: dict, device: str, dtype: torch.dtype) -> Qwen3OmniMoeCode2Wav:
    """transformers' Code2Wav with these weights."""
    values = {name: getattr(config, name) for name in config.__dataclass_fields__ if name != "rope_theta"}
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    with torch.device(device):
        model = Qwen3OmniMoeCode2Wav(Qwen3OmniMoeCode2WavConfig(**values, rope_parameters=rope))
    model.load_state_dict(tensors, strict=True)
    return model.to(dtype).eval()


def streamed(model: Code2WavModel, state: StreamState, codes: torch.Tensor) -> torch.Tensor:
    """Decode `codes` [2, frames, quantizers] in chunks of `CUTS`, the second stream started one chunk late."""
    heard = ([], [])
    positions, step = [0, 0], 0
    while min(positions) < codes.shape[1]:
        frames = CUTS[step % len(CUTS)]
        active = [row for row in (0, 1) if step >= row and positions[row] + frames <= codes.shape[1]]
        step += 1
        if not active:
            frames, active = 1, [row for row in (0, 1) if positions[row] < codes.shape[1]]
        chunk = torch.stack([codes[row, positions[row] : positions[row] + frames] for row in active])
        slots = torch.tensor(active, device=codes.device)
        audio = model.forward(chunk, Batch(slots, torch.tensor([positions[row] for row in active]).to(slots)), state)
        for row, samples in zip(active, audio, strict=True):
            heard[row].append(samples if positions[row] else samples[model.config.startup_samples :])
            positions[row] += frames
    return torch.stack([torch.cat(rows) for rows in heard])


@torch.no_grad()
def compare(
    config: Code2WavConfig, tensors: dict, device: str, variants: dict[str, tuple[torch.dtype, Ops]], frames: int
) -> list[dict[str, object]]:
    """For each variant: largest difference and relative error (norm) against the float32 unchunked forward."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    generator = np.random.default_rng(3)
    codes = generator.integers(0, config.codebook_size, (2, frames, config.num_quantizers))
    codes = torch.as_tensor(codes, device=device)
    exact = transformers_model(config, tensors, device, torch.float32)(codes.transpose(1, 2))[:, 0]
    rows = [{"variant": "transformers float32", "std": exact.std().item(), "peak": exact.abs().max().item()}]
    half = transformers_model(config, tensors, device, torch.bfloat16)(codes.transpose(1, 2))[:, 0].float()
    rows.append({"variant": "transformers bfloat16, unchunked", **_errors(half, exact)})
    for name, (dtype, ops) in variants.items():
        parameters = build_parameters(tensors, config, device, dtype)
        state = StreamState(config, parameters, 2, device, dtype)
        waveform = streamed(Code2WavModel(config, parameters, ops), state, codes)
        rows.append({"variant": name, **_errors(waveform, exact)})
    return rows


def _errors(actual: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    difference = actual - expected
    return {
        "largest": difference.abs().max().item(),
        "relative": (difference.norm() / expected.norm()).item(),
    }
