"""Random weights that behave: no collapsed hidden states, no endless repetition, answers that end by themselves.

Every matrix is drawn with variance 1 / fan-in, so that each layer adds to the residual stream about as much as the
embedding brought in. Two heads are then shaped, because a plain random head would name arbitrary ids and never stop:

* The Thinker's ``lm_head`` prefers everyday English and Chinese words, has tokens that are only part of a character
  (followed by the token that completes it), and an end row long enough to win now and then.
* The Talker's ``codec_head`` has an end row that grows likely once the text row has become ``tts_pad``.

Code2Wav's last convolution is scaled by a measured factor, so that the waveform is neither silent nor clipped.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

from .tokenizer import token_bytes

RESIDUAL_GAIN = 0.7  # of projections that write to a residual stream
ATTENTION_SHARPNESS = 1.6  # weight of the query and key norms
ROUTER_GAIN = 2.0
# Activations of Code2Wav's decoder must stay near 1: SnakeBeta's sine turns the rounding of a large one into noise.
DECODER_GAIN = 0.5
WORD_SCALE = 4.0  # standard deviation of the logits of everyday words
OTHER_SCALE = 0.8  # ... of every other base token
THINKER_END_SCALE = 6.4  # ... of the end of the answer
CODE_SCALE = 4.0  # ... of the codec ids
CODEC_EMBEDDING_STD = 0.3
TALKER_END_BIAS = 2.0  # ... of the end of speech: its part along the tts_pad row
TALKER_END_SCALE = 3.0  # ... and its random part
WAVEFORM_RMS = 0.12

# Characters of two tokens each, and one of three; no two of them share a token.
SPLIT_CHARACTERS = "龘鬱麤籲黌鱻羴驫猋雥灪鸞讟钃韊鼺齾🧩🛰🪐"
SPLIT_EMBEDDING_GAIN = 3.0  # lets the first part of a character decide what follows it
NEWLINE_EMBEDDING_GAIN = 0.2
SPLIT_FIRST_SCALE = 4.0
SPLIT_SCALE = 3.5  # length of the rows of following parts


def word_ids() -> list[int]:
    """Ids of the everyday words that are one token; English ones with the space before them."""
    english, chinese = (
        Path(__file__).with_name(f"{language}.txt").read_text(encoding="utf-8").split()
        for language in ("english", "chinese")
    )
    words = {f" {word}".encode() for word in english} | {word.encode() for word in chinese}
    return [index for index, token in enumerate(token_bytes()) if token in words]


def split_characters() -> list[list[int]]:
    """Token ids of each of ``SPLIT_CHARACTERS``: greedy longest match, which is what BPE gives for them."""
    by_bytes = {token: index for index, token in enumerate(token_bytes())}
    pieces = []
    for character in SPLIT_CHARACTERS:
        data, ids = character.encode(), []
        while data:
            length = next(size for size in range(len(data), 0, -1) if data[:size] in by_bytes)
            ids.append(by_bytes[data[:length]])
            data = data[length:]
        pieces.append(ids)
    return pieces


def _fan_in(module: nn.Module, weight: torch.Tensor) -> float:
    if isinstance(module, nn.ConvTranspose1d):
        # One output sample sums kernel / stride taps of every input channel.
        return weight.shape[0] * weight.shape[2] / module.stride[0]
    return weight[0].numel()


def _randomise(model: nn.Module, generator: torch.Generator) -> None:
    """Draw every parameter of ``model`` in the order of its name."""

    def normal(tensor: torch.Tensor, std: float, mean: float = 0.0) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std + mean)

    modules = dict(model.named_modules())
    for name, parameter in sorted(model.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        module = modules[owner]
        if leaf == "bias":
            normal(parameter, 0.05)
        elif isinstance(module, nn.Embedding):
            normal(parameter, 1.0)
        elif owner.endswith(("q_norm", "k_norm")):
            normal(parameter, 0.1, ATTENTION_SHARPNESS)
        elif "norm" in owner.rpartition(".")[2] or owner.endswith("ln_q"):
            normal(parameter, 0.1, 1.0)
        elif leaf in ("alpha", "beta"):
            normal(parameter, 0.3)
        elif leaf in ("gamma", "scale"):
            normal(parameter, 0.05, 0.5)
        elif leaf == "gate_up_proj":
            normal(parameter, parameter.shape[-1] ** -0.5)
        elif leaf == "down_proj":
            normal(parameter, 2 * RESIDUAL_GAIN * parameter.shape[-1] ** -0.5)
        elif owner.endswith("mlp.gate"):
            normal(parameter, ROUTER_GAIN * parameter.shape[-1] ** -0.5)
        else:
            gain = 1.0
            if owner.endswith(("o_proj", "out_proj", "attn.proj")):
                gain = RESIDUAL_GAIN
            elif owner.endswith(("down_proj", "fc2", "linear_fc2", "pwconv2")):
                gain = 2 * RESIDUAL_GAIN  # its input passed an activation that halves it
            elif "code2wav.decoder" in owner:
                gain = DECODER_GAIN
            normal(parameter, gain * _fan_in(module, parameter) ** -0.5)


def _shape_lm_head(thinker: nn.Module, end_id: int, generator: torch.Generator) -> None:
    head, embedding = thinker.lm_head.weight, thinker.model.embed_tokens.weight
    unit = head.shape[1] ** -0.5
    # Every answer follows the same newline; made small, it leaves the first id to what attention read.
    embedding[token_bytes().index(b"\n")] *= NEWLINE_EMBEDDING_GAIN
    scale = torch.full((head.shape[0],), OTHER_SCALE)
    scale[len(token_bytes()) :] = 0.0
    scale[word_ids()] = WORD_SCALE
    scale[end_id] = THINKER_END_SCALE
    characters = split_characters()
    scale[[pieces[0] for pieces in characters]] = SPLIT_FIRST_SCALE
    head.copy_(torch.randn(head.shape, generator=generator) * (scale * unit)[:, None])
    for pieces in characters:
        for previous, following in zip(pieces, pieces[1:], strict=False):
            embedding[previous] *= SPLIT_EMBEDDING_GAIN
            head[following] = embedding[previous] * SPLIT_SCALE / embedding[previous].norm()


def _shape_codec_head(model: nn.Module, config: dict[str, Any], generator: torch.Generator) -> None:
    talker, thinker = model.talker, model.thinker
    # The 16 codec embeddings of a frame are summed and must leave room for the text row.
    talker.model.codec_embedding.weight.mul_(CODEC_EMBEDDING_STD)
    for table in talker.code_predictor.model.codec_embedding:
        table.weight.mul_(CODEC_EMBEDDING_STD)
    for head in (talker.codec_head, *talker.code_predictor.lm_head):
        head.weight.mul_(CODE_SCALE)
    end_row = talker.codec_head.weight[config["talker_config"]["codec_eos_token_id"]]
    pad = thinker.model.embed_tokens.weight[config["tts_pad_token_id"]]
    spoken = talker.text_projection(pad)
    noise = torch.randn(end_row.shape, generator=generator) * end_row.shape[0] ** -0.5
    end_row.copy_(TALKER_END_BIAS * spoken / spoken.norm() + TALKER_END_SCALE * noise)


def _shape_waveform(code2wav: nn.Module, generator: torch.Generator) -> None:
    config = code2wav.config
    codes = torch.randint(config.codebook_size, (1, config.num_quantizers, 50), generator=generator)
    last = code2wav.decoder[-1].conv
    last.weight.mul_(1e-3)
    last.bias.zero_()
    rms = code2wav(codes).square().mean().sqrt().item()
    last.weight.mul_(WAVEFORM_RMS / rms)
    if not math.isfinite(rms) or rms == 0.0:
        raise RuntimeError(f"Code2Wav gives a waveform of RMS {rms} before scaling")


def build_model(config: dict[str, Any], seed: int) -> Qwen3OmniMoeForConditionalGeneration:
    """The tiny model in float32 on the CPU, a function of ``config`` and ``seed`` alone."""
    generator = torch.Generator().manual_seed(seed)
    model = Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**config)).float().eval()
    with torch.no_grad():
        _randomise(model, generator)
        _shape_lm_head(model.thinker, config["im_end_token_id"], generator)
        _shape_codec_head(model, config, generator)
        _shape_waveform(model.code2wav, generator)
    return model
