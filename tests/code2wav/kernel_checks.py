"""Run with TRITON_INTERPRET=1 and the name of a plan: streams through the kernels and through PyTorch, compared."""

from __future__ import annotations

import sys

import torch

from python_backends.code2wav import plan as plan_module
from python_backends.code2wav.config import Code2WavConfig
from python_backends.code2wav.model import Code2WavModel
from python_backends.code2wav.ops import Batch, Ops
from python_backends.code2wav.parameters import build_parameters
from python_backends.code2wav.plan import GemmTile, KernelPlan
from python_backends.code2wav.state import StreamState
from python_backends.code2wav.triton_ops import TritonOps
from python_backends.code2wav.weights import random_tensors

# Widths that meet every branch: 96 and 48 channels are no powers of two, 24 channels are left to PyTorch.
CONFIG = Code2WavConfig(
    codebook_size=32,
    num_quantizers=4,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    sliding_window=5,
    decoder_dim=96,
    upsampling_ratios=(2,),
    upsample_rates=(2, 3),
    max_position_embeddings=32,
)
SMALL = (GemmTile(32, 64, 32, 4, 2), GemmTile(16, 16, 16, 4, 2))
PLANS = {
    "general": KernelPlan(tiles=SMALL),
    "descriptors": KernelPlan(tiles=(GemmTile(32, 64, 32, 4, 2, tma=True),)),
}
# Frames, slots and positions of each step; slot 3 is the scratch slot, as a padding row uses it.
STEPS = [(2, [2, 1], [0, 0]), (1, [2], [2]), (5, [1, 3], [2, 0]), (2, [2, 0], [3, 0])]


def samples(ops: Ops) -> torch.Tensor:
    parameters = build_parameters(random_tensors(CONFIG, "cpu", 1), CONFIG, "cpu", torch.float32)
    state = StreamState(CONFIG, parameters, 3, "cpu", torch.float32)
    for pool in state.pools():
        pool.fill_(float("nan"))
    model, generator, heard = Code2WavModel(CONFIG, parameters, ops), torch.Generator().manual_seed(0), []
    for frames, slots, positions in STEPS:
        codes = torch.randint(0, CONFIG.codebook_size, (len(slots), frames, 4), generator=generator)
        audio = model.forward(codes, Batch(torch.tensor(slots), torch.tensor(positions)), state)
        for row, slot, position in zip(audio, slots, positions, strict=True):
            if slot != state.scratch:
                heard.append(row[0 if position else CONFIG.startup_samples :])
    return torch.cat(heard)


def main() -> None:
    # Two programs are enough work: the interpreter runs one after the other.
    plan_module.MULTIPROCESSORS = 2
    expected, actual = samples(Ops()), samples(TritonOps(PLANS[sys.argv[1]]))
    error = (actual - expected).abs().max().item()
    print(f"{sys.argv[1]}: {len(actual)} samples, largest difference {error:.2e}")
    if not error < 2e-6:
        raise SystemExit("the kernels differ from the PyTorch operations")


if __name__ == "__main__":
    main()
