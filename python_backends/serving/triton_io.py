"""Small helpers around triton_python_backend_utils."""

from __future__ import annotations

import gc
import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backends.config.errors import InvalidRequest, OmniError
from python_backends.config.media_inputs import INPUTS


def json_tensor(name: str, value: dict | list) -> Any:
    """A [1] string tensor with `value` as JSON."""
    return text_tensor(name, json.dumps(value))


def text_tensor(name: str, value: str) -> Any:
    """A [1] string tensor."""
    return pb_utils.Tensor(name, np.array([value.encode()], dtype=np.object_))


def request_bytes(request: Any, name: str) -> bytes:
    """The single element of a [1] string input. Raises InvalidRequest when it is something else."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        raise InvalidRequest(name, "this input is required")
    array = tensor.as_numpy().reshape(-1)
    if array.size != 1:
        raise InvalidRequest(name, f"must hold one string, got {array.size}")
    value = array[0]
    return value if isinstance(value, bytes) else str(value).encode()


def checked_name(request: Any) -> str:
    """The client's name for the request, "" without one; HTTP's `generate_stream` makes a parameter of its `id` too.

    Raises InvalidRequest for what Triton's API lets a client send and this server has no use for.

    Of `priority` Triton tells its Python backend nothing.
    """
    parameters = json.loads(request.parameters() or "{}")
    found = request.request_id()
    for name, value in parameters.items():
        if name == "id" and value == found:
            continue
        raise InvalidRequest(f"parameters.{name}", "unknown request parameter: all fields go into the input `request`")
    if request.correlation_id() or request.flags():
        raise InvalidRequest("sequence_id", "this server keeps no sequences: each request brings all its messages")
    return found


def media_arrays(request: Any) -> dict[str, np.ndarray]:
    """The raw media that `request` brings, by the names of the inputs.

    The arrays are the caller's: `as_numpy` has copied them out of Triton's shared memory.
    """
    found = {name: pb_utils.get_input_tensor_by_name(request, name) for name in INPUTS}
    return {name: tensor.as_numpy() for name, tensor in found.items() if tensor is not None}


def media_tensors(media: dict[str, np.ndarray]) -> list:
    """Undo `media_arrays`, for a call of a model that takes the same inputs."""
    return [pb_utils.Tensor(name, array) for name, array in media.items()]


def triton_error(error: OmniError) -> Any:
    """The client sees `[code] message`."""
    return pb_utils.TritonError(f"[{error.code}] {error}")


def collect_what_triton_shares() -> None:
    """For `finalize`: free what only the garbage collector finds. After it the stub gives the shared memory back that
    requests and responses lie in, and one that is freed then is a crash (seen with Triton 2.51)."""
    gc.collect()
