"""vLLM's LLMEngine with its core in this process: the only file that calls it."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from python_backends.config.errors import InvalidRequest
from python_backends.config.sampling import ThinkerSampling
from python_backends.config.spoken_prompt import TAIL_ROWS, user_rows
from python_backends.thinker.capture.plan import CAPTURE_ARG
from python_backends.thinker.capture.taker import RowTaker
from python_backends.thinker.capture.transport import RowReceiver
from python_backends.thinker.delivery import Stream
from python_backends.thinker.detokenizer import TokenBytes
from python_backends.thinker.film_sound import MediaIds
from python_backends.thinker.media.loader import LoadedMedia
from python_backends.thinker.media.refs import MEDIA_KINDS, MediaRef
from python_backends.thinker.multimodal import MediaPrompt, build
from python_backends.thinker.options import (
    ThinkerOptions,
    accept_hidden_layer,
    captures,
    engine_arg_names,
    prepare_process,
    vllm_engine_args,
)
from python_backends.thinker.prompt import PromptBuilder
from python_backends.thinker.vllm_patches.tokenizer_loads import OneTokenizer
from python_backends.thinker.warmup import prompts_of, warm_up_rows

log = logging.getLogger(__name__)
# What the grammar's compiler writes before its reason.
_PLACE_IN_SOURCE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")


def preload(options: ThinkerOptions) -> None:
    """Import what vLLM needs for this model, on no device and with no thread: a process may be forked afterwards."""
    prepare_process(options)
    import vllm.engine.arg_utils
    import vllm.model_executor.models.qwen3_omni_moe_thinker
    import vllm.v1.engine.llm_engine

    if options.device == "cpu":
        import vllm.v1.worker.cpu_worker  # noqa: F401


class VllmCore:
    """To be built after `preload`. `add`, `abort`, `step` and `close` belong to the thread that built it; the others to
    any.
    """

    def __init__(self, options: ThinkerOptions, receive_rows: Callable[[str, np.ndarray, np.ndarray], None]) -> None:
        started = time.monotonic()
        from vllm.platforms import current_platform

        if options.device == "cpu":
            # Else the first request with log probabilities waits for a C++ compiler, and all others with it.
            current_platform.simple_compile_backend = "eager"
        from vllm.engine.arg_utils import EngineArgs
        from vllm.exceptions import VLLMClientError
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
        from vllm.v1.engine.llm_engine import LLMEngine

        if (options.device == "cuda") != current_platform.is_cuda():
            raise ValueError(f"device: {options.device}, but this vLLM runs on {current_platform.device_type}")
        config = _config(options.model)
        self.speaks = accept_hidden_layer(config) is not None
        role_ids = config.get("im_start_token_id"), config.get("user_token_id")
        self._speech_ids = None if role_ids[0] is None or role_ids[1] is None else (role_ids[0], role_ids[1])
        args = vllm_engine_args(options, engine_arg_names(EngineArgs), config)
        self.captures = captures(options, config)
        self._receiver = RowReceiver(receive_rows) if self.captures else None
        with OneTokenizer():
            self._engine = LLMEngine.from_engine_args(EngineArgs(**args))
        self._sampling_params, self._structured = SamplingParams, StructuredOutputsParams
        self._refusals = (ValueError, VLLMClientError)
        self._delta = RequestOutputKind.DELTA
        model_config = self._engine.vllm_config.model_config
        self._tokenizer = tokenizer = self._engine.renderer.get_tokenizer()
        self.max_model_len: int = model_config.max_model_len
        self.prompts = PromptBuilder(tokenizer, options.model)
        self.token_bytes = TokenBytes(tokenizer)
        self.stop_ids = _stop_ids(model_config.try_get_generation_config(), tokenizer.eos_token_id)
        thinker = model_config.hf_config.thinker_config
        self._media_ids = MediaIds.of(thinker)
        self.positions_per_second: int = thinker.position_id_per_seconds
        # The processor is used by one request at a time.
        self._processor_lock = threading.Lock()
        self.streams: dict[str, Stream] = {}
        log.info("vLLM is ready after %.1f s", time.monotonic() - started)

    @property
    def running(self) -> int:
        return self._engine.get_num_unfinished_requests()

    def check_length(self, ids: Sequence[int] | np.ndarray, speech_rows: int | None = None) -> None:
        """Raises InvalidRequest for a prompt that leaves no room for an answer, in any stage that is needed.

        `speech_rows`: the Talker's context, of which the user's turns take a row a token.
        """
        length, limit = len(ids), self.max_model_len
        if length >= limit:
            raise InvalidRequest("messages", f"make {length} tokens; the context of {limit} must hold an answer too")
        if speech_rows is not None and self._speech_ids is not None:
            heard = int(np.count_nonzero(user_rows(np.asarray(ids), *self._speech_ids)))
            most = speech_rows - TAIL_ROWS - 1
            if heard > most:
                reason = f"make {heard} tokens of user turns; at most {most} for spoken answers, {limit - 1} in all"
                raise InvalidRequest("messages", f"{reason} for text: ask for modalities text, or for less")

    def check_placeholders(self, ids: list[int], media: list[MediaRef]) -> None:
        """Raises InvalidRequest unless the placeholders in `ids` are those of `media`; what follows relies on it."""
        kinds = [ref.kind for ref in media]
        for kind, media_id in zip(MEDIA_KINDS, self._media_ids.placeholders, strict=True):
            found, given = ids.count(media_id), kinds.count(kind)
            if found != given:
                raise InvalidRequest("messages", f"make {found} {kind} placeholders for {given} {kind} parts")

    def check_limit(self, max_tokens: int) -> None:
        """Raises InvalidRequest for a limit that no answer can reach; the default one is cut by the context instead."""
        if max_tokens > max(self.max_model_len, ThinkerSampling.max_tokens):
            raise InvalidRequest(
                "sampling.thinker.max_tokens", f"is {max_tokens}; the context holds {self.max_model_len} tokens"
            )

    def text_input(self, ids: list[int]) -> Any:
        return self._engine.renderer.render_cmpl([{"prompt_token_ids": ids}])[0]

    def media_prompt(self, ids: list[int], media: LoadedMedia, key: str) -> MediaPrompt:
        """See `multimodal.build`."""
        with self._processor_lock:
            return build(self._engine.renderer, ids, media, self._media_ids, self.positions_per_second, key)

    def sampling_params(self, sampling: ThinkerSampling, seed: int | None) -> Any:
        """Raises InvalidRequest that names the field for what vLLM or the vocabulary will not take."""
        constraint, bias = sampling.constraint(), sampling.logit_bias
        params = self._sampling_params(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            seed=seed,
            max_tokens=sampling.max_tokens,
            ignore_eos=sampling.ignore_eos,
            # Also keeps end-of-text ids from being drawn, so that the Talker never sees one.
            min_tokens=sampling.max_tokens if sampling.ignore_eos else sampling.min_tokens,
            # Stop strings are ours: vLLM would send the ids that make them.
            stop_token_ids=sampling.stop_token_ids,
            bad_words=sampling.bad_words,
            logit_bias=None if bias is None else {int(name): value for name, value in bias.items()},
            logprobs=sampling.top_logprobs if sampling.logprobs else None,
            structured_outputs=None if constraint is None else self._structured(**constraint),
            detokenize=False,
            output_kind=self._delta,
        )
        self._verify(params, sampling)
        return params

    def _verify(self, params: Any, sampling: ThinkerSampling) -> None:
        """vLLM's own checks at the door; they would else fail on the engine's thread, without the field's name."""
        config, vocabulary = self._engine.vllm_config, self._engine.vllm_config.model_config.get_vocab_size()
        for name, ids in (("stop_token_ids", sampling.stop_token_ids), ("logit_bias", sampling.logit_bias)):
            for token_id in ids or ():
                if int(token_id) >= vocabulary:
                    reason = f"has the id {token_id}; this vocabulary has ids up to {vocabulary - 1}"
                    raise InvalidRequest(f"sampling.thinker.{name}", reason)
        checks: tuple[tuple[str, Any, Callable[[], None]], ...] = (
            ("bad_words", sampling.bad_words, lambda: params.clone().update_from_tokenizer(self._tokenizer)),
            (
                sampling.shaped_by or "",
                params.structured_outputs,
                lambda: params.verify(
                    config.model_config, config.speculative_config, config.structured_outputs_config, self._tokenizer
                ),
            ),
            ("top_logprobs", sampling.top_logprobs, lambda: params.verify(config.model_config, None, None, None)),
        )
        for name, given, check in checks:
            if not given:
                continue
            try:
                check()
            except self._refusals as error:
                reason = _PLACE_IN_SOURCE.sub("", str(error)).strip()
                raise InvalidRequest(f"sampling.thinker.{name}", f"is not taken by vLLM: {reason}") from None

    def warm_up(self, most: int | None = None) -> None:
        """Run prompts of every size, up to `most` rows a step, for which vLLM has another kernel; see `warmup`."""
        started = time.monotonic()
        scheduler = self._engine.vllm_config.scheduler_config
        sampling = ThinkerSampling(max_tokens=2, ignore_eos=True)
        sizes = warm_up_rows(most or scheduler.max_num_batched_tokens)
        for rows in sizes:
            prompts = prompts_of(rows, self.max_model_len - sampling.max_tokens)
            if len(prompts) > scheduler.max_num_seqs:
                break
            for number, prompt in enumerate(prompts):
                params = self.sampling_params(sampling, number)
                if rows == sizes[0]:
                    params.logprobs = 1  # these have a kernel of their own to compile
                params.skip_reading_prefix_cache = True
                self._engine.add_request(f"warm-up {rows} {number}", self.text_input(prompt), params)
            while self.running:
                self._engine.step()
        self._engine.reset_prefix_cache()
        log.info("vLLM is warm after %.1f s", time.monotonic() - started)

    def capture(self, params: Any, key: str) -> None:
        """Ask the workers for the hidden rows of a request's media.

        They exist only where the model runs: a prompt read from the prefix cache has none, so it is computed again.
        Its blocks still go into the cache, and text-only requests read it.
        """
        params.extra_args = {CAPTURE_ARG: key}
        params.skip_reading_prefix_cache = True

    def add(self, stream: Stream, engine_input: Any, params: Any) -> None:
        """Raises ValueError for what vLLM will not take."""
        try:
            self._engine.add_request(stream.stream_id, engine_input, params)
        except self._refusals as error:
            raise ValueError(str(error)) from None
        self.streams[stream.stream_id] = stream

    def abort(self, stream: Stream) -> None:
        if self.streams.get(stream.stream_id) is stream:
            del self.streams[stream.stream_id]
            self._engine.abort_request([stream.stream_id])

    def step(self) -> list[tuple[str, list[int], str | None, list | None]]:
        """One model step: (stream id, new ids, finish reason, log probabilities) for each stream that moved."""
        return [
            (
                output.request_id,
                list(output.outputs[0].token_ids),
                output.outputs[0].finish_reason,
                output.outputs[0].logprobs,
            )
            for output in self._engine.step()
        ]

    def taker(self) -> RowTaker | None:
        """The hidden-row copier of this process's worker; None when workers have processes of their own."""
        worker = getattr(self._engine.model_executor, "driver_worker", None)
        return getattr(getattr(worker, "worker", worker), "row_taker", None)

    def close(self) -> None:
        self._engine.renderer.shutdown()
        self._engine.engine_core.shutdown()
        if self._receiver is not None:
            self._receiver.close()


def _config(model: str) -> dict[str, Any]:
    from transformers.utils import cached_file

    with open(cached_file(model, "config.json"), encoding="utf-8") as file:
        return json.load(file)


def _stop_ids(generation_config: dict[str, Any], eos_token_id: int | None) -> frozenset[int]:
    ids = generation_config.get("eos_token_id") or []
    ids = {ids} if isinstance(ids, int) else set(ids)
    return frozenset(ids if eos_token_id is None else ids | {eos_token_id})
