"""Code2Wav's tensors under their Hugging Face names: read from safetensors, or random."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from python_backends.code2wav.config import Code2WavConfig
from python_backends.engines_common.tensor_source import SafetensorsSource

PREFIX = "code2wav."


def tensor_shapes(config: Code2WavConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor by its name in the checkpoint, without the prefix `code2wav.`."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key_value = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    shapes: dict[str, tuple[int, ...]] = {
        "code_embedding.weight": (config.codebook_size * config.num_quantizers, hidden),
        "pre_transformer.norm.weight": (hidden,),
    }
    for index in range(config.num_hidden_layers):
        layer = f"pre_transformer.layers.{index}."
        shapes |= {
            layer + "self_attn.q_proj.weight": (query, hidden),
            layer + "self_attn.k_proj.weight": (key_value, hidden),
            layer + "self_attn.v_proj.weight": (key_value, hidden),
            layer + "self_attn.o_proj.weight": (hidden, query),
            layer + "mlp.gate_proj.weight": (inner, hidden),
            layer + "mlp.up_proj.weight": (inner, hidden),
            layer + "mlp.down_proj.weight": (hidden, inner),
            layer + "input_layernorm.weight": (hidden,),
            layer + "post_attention_layernorm.weight": (hidden,),
            layer + "self_attn_layer_scale.scale": (hidden,),
            layer + "mlp_layer_scale.scale": (hidden,),
        }
    for index, ratio in enumerate(config.upsampling_ratios):
        block = f"upsample.{index}."
        shapes |= {
            block + "0.conv.weight": (hidden, hidden, ratio),
            block + "0.conv.bias": (hidden,),
            block + "1.dwconv.conv.weight": (hidden, 1, 7),
            block + "1.dwconv.conv.bias": (hidden,),
            block + "1.norm.weight": (hidden,),
            block + "1.norm.bias": (hidden,),
            block + "1.pwconv1.weight": (4 * hidden, hidden),
            block + "1.pwconv1.bias": (4 * hidden,),
            block + "1.pwconv2.weight": (hidden, 4 * hidden),
            block + "1.pwconv2.bias": (hidden,),
            block + "1.gamma": (hidden,),
        }
    width = config.decoder_dim
    shapes |= {"decoder.0.conv.weight": (width, hidden, 7), "decoder.0.conv.bias": (width,)}
    for index, rate in enumerate(config.upsample_rates):
        block, out = f"decoder.{index + 1}.block.", width // 2
        shapes |= {block + "0.alpha": (width,), block + "0.beta": (width,)}
        shapes |= {block + "1.conv.weight": (width, out, 2 * rate), block + "1.conv.bias": (out,)}
        for unit in (block + "2.", block + "3.", block + "4."):
            for act in ("act1.", "act2."):
                shapes |= {unit + act + "alpha": (out,), unit + act + "beta": (out,)}
            shapes |= {unit + "conv1.conv.weight": (out, out, 7), unit + "conv1.conv.bias": (out,)}
            shapes |= {unit + "conv2.conv.weight": (out, out, 1), unit + "conv2.conv.bias": (out,)}
        width = out
    last = len(config.upsample_rates) + 1
    shapes |= {f"decoder.{last}.alpha": (width,), f"decoder.{last}.beta": (width,)}
    shapes |= {f"decoder.{last + 1}.conv.weight": (1, width, 7), f"decoder.{last + 1}.conv.bias": (1,)}
    return shapes


def load_tensors(checkpoint: str | Path, config: Code2WavConfig) -> dict[str, torch.Tensor]:
    """Read Code2Wav's tensors, and no others, from a Hugging Face directory (one file, or a sharded index).

    Raises ValueError, naming the tensor, if one is missing or has another shape than `config` asks for.
    """
    source = SafetensorsSource(checkpoint)
    return {name: source.get(PREFIX + name, shape) for name, shape in tensor_shapes(config).items()}


def random_tensors(config: Code2WavConfig, device: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 weights on `device` that keep activations near unit variance and the waveform inside [-1, 1].

    They are for tests and benchmarks: every layer, the layer scales included, contributes audibly.
    """
    generator = torch.Generator(device).manual_seed(seed)
    return {
        name: _random_tensor(name, shape, config, generator, device) for name, shape in tensor_shapes(config).items()
    }


def _random_tensor(
    name: str, shape: tuple[int, ...], config: Code2WavConfig, generator: torch.Generator, device: str
) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator, device=device)
    if name == "code_embedding.weight":
        return noise * math.sqrt(config.num_quantizers)
    if name.endswith(("alpha", "beta")):
        return noise * 0.3
    if name.endswith("bias"):
        return noise * 0.02
    if name.endswith(("norm.weight", "layernorm.weight")):
        return 1 + 0.1 * noise
    if name.endswith(("scale", "gamma")):
        return 0.1 + 0.02 * noise
    if name == f"decoder.{len(config.upsample_rates) + 2}.conv.weight":
        return noise * 0.03 / math.sqrt(shape[1] * shape[2])
    if ".block.1.conv" in name or (name.startswith("upsample") and ".0.conv" in name):
        inputs_of_one_output = shape[0] * (2 if name.startswith("decoder") else 1)
        return noise / math.sqrt(inputs_of_one_output)
    gain = 0.3 if "conv2.conv" in name else 1.0
    return noise * gain / math.sqrt(math.prod(shape[1:]))
