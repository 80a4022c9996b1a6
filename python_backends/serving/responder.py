"""Responder on Triton's decoupled response sender."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backends.config.errors import OmniError
from python_backends.serving.triton_io import json_tensor, text_tensor, triton_error

# Threads that asked at the same time were seen to keep Triton 2.51 from unloading the model when it stops.
_ASK = threading.Lock()


class TritonResponder:
    """Sends one request's responses. Used by one thread at a time."""

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()

    def send(
        self, text: str, audio: np.ndarray | None, summary: dict | None = None, logprobs: list[dict] | None = None
    ) -> None:
        tensors = []
        if logprobs:
            tensors.append(json_tensor("logprobs", logprobs))
        if text:
            tensors.append(text_tensor("text", text))
        if audio is not None:
            name = "audio" if audio.dtype == np.float32 else "audio_int16"
            tensors.append(pb_utils.Tensor(name, np.ascontiguousarray(audio)))
        if summary is None:
            self._sender.send(pb_utils.InferenceResponse(tensors))
            return
        tensors.append(json_tensor("summary", summary))
        self._sender.send(pb_utils.InferenceResponse(tensors), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def error(self, error: OmniError) -> None:
        response = pb_utils.InferenceResponse(error=triton_error(error))
        self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def cancelled(self) -> bool:
        with _ASK:
            return self._sender.is_cancelled()
