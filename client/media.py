"""Media of a request: files as parts of a message, arrays as raw tensors beside it."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton

KINDS = ("audio", "image", "video")


def file_part(kind: str, path: str | Path, data: bytes | None = None, **options: object) -> dict:
    """The content part, in OpenAI's form, that holds the file `path` as an "audio", "image" or "video".

    `data`: a WAV file's content in place of the file. `options` of a video: `fps`, `num_frames`,
    `use_audio_in_video`. Raises OSError.
    """
    encoded = base64.b64encode(Path(path).read_bytes() if data is None else data).decode()
    if kind == "audio":
        name = "wav" if data is not None else Path(path).suffix.lstrip(".") or "wav"
        return {"type": "input_audio", "input_audio": {"data": encoded, "format": name}}
    url = f"data:{mimetypes.guess_type(str(path))[0] or ''};base64,{encoded}"
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url, **options}}


@dataclass(frozen=True)
class RawMedia:
    """Arrays that travel as they are. The messages name them by number: `{"type": "image", "tensor": 0}`.

    `audio`: (float32 [n] mono samples, rate in Hz). `image`: uint8 [height, width, 3], RGB. `video`: uint8
    [t, height, width, 3], RGB; the part may say their rate as `fps`.
    """

    audio: Sequence[tuple[np.ndarray, int]] = ()
    image: Sequence[np.ndarray] = ()
    video: Sequence[np.ndarray] = ()

    def inputs(self) -> list[triton.InferInput]:
        """The optional inputs of `qwen3_omni` that carry them. Raises ValueError that names the array at fault."""
        found = []
        if self.audio:
            found.append(("AUDIO", "FP32", _end_to_end("audio", [samples for samples, _ in self.audio], "float32", 1)))
            found.append(("AUDIO_LENGTHS", "INT64", np.array([len(samples) for samples, _ in self.audio], np.int64)))
            found.append(("AUDIO_RATES", "INT32", np.array([rate for _, rate in self.audio], np.int32)))
        for name, arrays, rank in (("image", self.image, 3), ("video", self.video, 4)):
            if arrays:
                found.append((name.upper(), "UINT8", _end_to_end(name, arrays, "uint8", rank)))
                shapes = np.array([array.shape for array in arrays], np.int64)
                found.append((f"{name.upper()}_SHAPES", "INT64", shapes))
        return [_tensor(*item) for item in found]


def _end_to_end(name: str, arrays: Sequence[np.ndarray], dtype: str, rank: int) -> np.ndarray:
    for at, array in enumerate(arrays):
        if array.dtype != dtype or array.ndim != rank:
            what = f"{dtype} of {rank} dimensions"
            raise ValueError(f"{name}[{at}]: must be {what}, got {array.dtype} {list(array.shape)}")
    return np.concatenate([array.reshape(-1) for array in arrays])


def _tensor(name: str, kind: str, array: np.ndarray) -> triton.InferInput:
    tensor = triton.InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor
