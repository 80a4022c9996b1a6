"""vLLM's LLMEngine with its core in this process: the only file that calls it."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from python_backends.config.sampling import ThinkerSampling
from python_backends.thinker.delivery import Stream
from python_backends.thinker.detokenizer import TokenBytes
from python_backends.thinker.options import ThinkerOptions, engine_arg_names, prepare_process, vllm_engine_args
from python_backends.thinker.prompt import PromptBuilder

log = logging.getLogger(__name__)


class VllmCore:
    """All methods but `text_input` and `sampling_params` belong to the thread that built it."""

    def __init__(self, options: ThinkerOptions) -> None:
        started = time.monotonic()
        prepare_process(options)
        from python_backends.thinker.torchvision_ops import declare_missing_ops

        declare_missing_ops()
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.sampling_params import RequestOutputKind, SamplingParams
        from vllm.v1.engine.llm_engine import LLMEngine

        if (options.device == "cuda") != current_platform.is_cuda():
            raise ValueError(f"device: {options.device}, but this vLLM runs on {current_platform.device_type}")
        args = vllm_engine_args(options, engine_arg_names(EngineArgs), _config(options.model))
        self._engine = LLMEngine.from_engine_args(EngineArgs(**args))
        self._sampling_params = SamplingParams
        self._delta = RequestOutputKind.DELTA
        model_config = self._engine.vllm_config.model_config
        tokenizer = self._engine.renderer.get_tokenizer()
        self.max_model_len: int = model_config.max_model_len
        self.prompts = PromptBuilder(tokenizer, options.model)
        self.token_bytes = TokenBytes(tokenizer)
        self.stop_ids = _stop_ids(model_config.try_get_generation_config(), tokenizer.eos_token_id)
        self.streams: dict[str, Stream] = {}
        log.info("vLLM is ready after %.1f s", time.monotonic() - started)

    @property
    def running(self) -> int:
        return self._engine.get_num_unfinished_requests()

    def text_input(self, ids: list[int]) -> Any:
        return self._engine.renderer.render_cmpl([{"prompt_token_ids": ids}])[0]

    def sampling_params(self, sampling: ThinkerSampling, seed: int | None) -> Any:
        return self._sampling_params(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            repetition_penalty=sampling.repetition_penalty,
            seed=seed,
            max_tokens=sampling.max_tokens,
            ignore_eos=sampling.ignore_eos,
            # Also keeps end-of-text ids from being drawn, so that the Talker never sees one.
            min_tokens=sampling.max_tokens if sampling.ignore_eos else 0,
            detokenize=False,
            output_kind=self._delta,
        )

    def add(self, stream: Stream, engine_input: Any, params: Any) -> None:
        """Raises ValueError for what vLLM will not take."""
        self._engine.add_request(stream.stream_id, engine_input, params)
        self.streams[stream.stream_id] = stream

    def abort(self, stream: Stream) -> None:
        if self.streams.get(stream.stream_id) is stream:
            del self.streams[stream.stream_id]
            self._engine.abort_request([stream.stream_id])

    def step(self) -> list[tuple[str, list[int], str | None]]:
        """One model step: (stream id, new ids, finish reason) for each stream that moved."""
        return [
            (output.request_id, list(output.outputs[0].token_ids), output.outputs[0].finish_reason)
            for output in self._engine.step()
        ]

    def close(self) -> None:
        self._engine.renderer.shutdown()
        self._engine.engine_core.shutdown()


def _config(model: str) -> dict[str, Any]:
    from transformers.utils import cached_file

    with open(cached_file(model, "config.json"), encoding="utf-8") as file:
        return json.load(file)


def _stop_ids(generation_config: dict[str, Any], eos_token_id: int | None) -> frozenset[int]:
    ids = generation_config.get("eos_token_id") or []
    ids = {ids} if isinstance(ids, int) else set(ids)
    return frozenset(ids if eos_token_id is None else ids | {eos_token_id})
