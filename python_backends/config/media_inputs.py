"""Raw media beside a request's JSON: the optional Triton inputs of `qwen3_omni` and `thinker`, and what they hold.

Items of a kind may differ in shape, so their elements lie end to end in one flat input, and a second one says where
each ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from python_backends.config.errors import InvalidRequest

# Some of INPUTS, by name.
MediaArrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class MediaTensors:
    """Raw media beside the messages, which name them by number: `{"type": "image", "tensor": 0}`.

    `audio`: (float [n] mono samples, rate in Hz). `image`: uint8 [height, width, 3], RGB. `video`: uint8
    [t, height, width, 3], RGB.
    """

    audio: tuple[tuple[np.ndarray, int], ...] = ()
    image: tuple[np.ndarray, ...] = ()
    video: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True)
class MediaInput:
    """One Triton input: its NumPy dtype and its dimensions, -1 for any size."""

    dtype: str
    dims: tuple[int, ...] = (-1,)


INPUTS = {
    "AUDIO": MediaInput("float32"),
    "AUDIO_LENGTHS": MediaInput("int64"),
    "AUDIO_RATES": MediaInput("int32"),
    "IMAGE": MediaInput("uint8"),
    "IMAGE_SHAPES": MediaInput("int64", (-1, 3)),
    "VIDEO": MediaInput("uint8"),
    "VIDEO_SHAPES": MediaInput("int64", (-1, 4)),
}
_TOGETHER = (("AUDIO", "AUDIO_LENGTHS", "AUDIO_RATES"), ("IMAGE", "IMAGE_SHAPES"), ("VIDEO", "VIDEO_SHAPES"))


def split_media(inputs: MediaArrays) -> MediaTensors:
    """The items that `inputs` hold: views, nothing is copied.

    Raises InvalidRequest that names the input: one without the other, of another type, sizes that do not add up.
    """
    for name, array in inputs.items():
        _check_type(name, array)
    for names in _TOGETHER:
        given = [name for name in names if name in inputs]
        if given and len(given) < len(names):
            missing = next(name for name in names if name not in inputs)
            raise InvalidRequest(missing, f"is required beside {given[0]}")
    audio: tuple[tuple[np.ndarray, int], ...] = ()
    if "AUDIO" in inputs:
        lengths, rates = inputs["AUDIO_LENGTHS"], inputs["AUDIO_RATES"]
        if len(lengths) != len(rates):
            raise InvalidRequest("AUDIO_RATES", f"holds {len(rates)} rates for {len(lengths)} lengths")
        audio = tuple(zip(_split(inputs, "AUDIO", lengths[:, None]), rates.tolist(), strict=True))
    return MediaTensors(audio, _items(inputs, "IMAGE"), _items(inputs, "VIDEO"))


def _check_type(name: str, array: np.ndarray) -> None:
    wanted = INPUTS.get(name)
    if wanted is None:
        raise InvalidRequest(name, f"is no media input; there are {', '.join(INPUTS)}")
    fits = len(array.shape) == len(wanted.dims) and all(
        want in (-1, got) for want, got in zip(wanted.dims, array.shape, strict=True)
    )
    if array.dtype != wanted.dtype or not fits:
        dims = ", ".join("n" if size == -1 else str(size) for size in wanted.dims)
        raise InvalidRequest(name, f"must be {wanted.dtype} [{dims}], got {array.dtype} {list(array.shape)}")


def _items(inputs: MediaArrays, name: str) -> tuple[np.ndarray, ...]:
    if name not in inputs:
        return ()
    shapes = inputs[f"{name}_SHAPES"]
    for at, shape in enumerate(shapes.tolist()):
        if shape[-1] != 3:
            raise InvalidRequest(f"{name}_SHAPES[{at}]", f"must end in the 3 colours, got {shape}")
    return _split(inputs, name, shapes)


def _split(inputs: MediaArrays, name: str, shapes: np.ndarray) -> tuple[np.ndarray, ...]:
    sizes_name = "AUDIO_LENGTHS" if name == "AUDIO" else f"{name}_SHAPES"
    flat, items, start = inputs[name], [], 0
    for at, shape in enumerate(shapes.tolist()):
        if min(shape) < 1:
            raise InvalidRequest(f"{sizes_name}[{at}]", f"must be positive, got {', '.join(map(str, shape))}")
        # In Python's integers: a product of strangers' numbers may overflow NumPy's.
        size = math.prod(shape)
        if start + size > flat.size:
            raise InvalidRequest(f"{sizes_name}[{at}]", f"reaches beyond the {flat.size} elements of {name}")
        items.append(flat[start : start + size].reshape(shape))
        start += size
    if start != flat.size:
        raise InvalidRequest(name, f"has {flat.size} elements, and {sizes_name} name {start}")
    return tuple(items)
