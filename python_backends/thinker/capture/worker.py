"""What a vLLM worker does beside its own work: keep the hidden rows that a Talker needs."""

from __future__ import annotations

import logging
import multiprocessing
from typing import TYPE_CHECKING, Any

from python_backends.thinker.capture.plan import CapturePlan
from python_backends.thinker.capture.taker import RowTaker
from python_backends.thinker.capture.transport import RowSender
from python_backends.thinker.vllm_patches.tokenizer_loads import OneTokenizer

log = logging.getLogger(__name__)

# Key of vLLM's additional_config, which reaches the workers and is part of the compile cache's key.
CAPTURE_CONFIG = "hidden_rows"

if TYPE_CHECKING:
    from vllm.v1.worker.worker_base import WorkerBase
else:
    WorkerBase = object  # mixed in: the base class comes second


class CaptureWorker(WorkerBase):
    """Mixed in before a vLLM worker class. Works with both of its model runners.

    `additional_config["hidden_rows"]`: `{"layer", "async_output"}`. A request asks with
    `extra_args={"capture_rows": stream}`; its prompt must not be read from the prefix cache.
    """

    _plan: CapturePlan | None = None
    row_taker: RowTaker | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # In a process of its own a worker loads the processor again, and this process does nothing else with it.
        if multiprocessing.parent_process() is not None:
            OneTokenizer().__enter__()
        super().__init__(*args, **kwargs)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        from vllm.distributed import get_tensor_model_parallel_rank
        from vllm.model_executor.models.utils import PPMissingLayer

        from python_backends.thinker.capture.layer import capture_input_of

        config = self.vllm_config.additional_config[CAPTURE_CONFIG]
        layer = self.model_runner.get_model().language_model.model.layers[config["layer"]]
        # Another stage of the pipeline has the layer, or another rank of this stage sends.
        if isinstance(layer, PPMissingLayer):
            return
        # All ranks compute the same graph, also those whose rows nobody reads.
        buffer = capture_input_of(layer, self.vllm_config.scheduler_config.max_num_batched_tokens)
        if get_tensor_model_parallel_rank() == 0:
            thinker = self.vllm_config.model_config.hf_config.thinker_config
            self._plan = CapturePlan((thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id))
            reason = self._why_synchronous(config["async_output"])
            log.info("hidden rows are copied %s", f"synchronously: {reason}" if reason else "asynchronously")
            self.row_taker = RowTaker(buffer, RowSender(), synchronous=reason is not None)

    def _why_synchronous(self, asked: bool) -> str | None:
        """The first guard that forbids asynchronous copies, or None."""
        from vllm.platforms import current_platform

        if not asked:
            return "async_output is off"
        if not self.vllm_config.scheduler_config.async_scheduling:
            return "vLLM schedules synchronously"
        if not current_platform.is_pin_memory_available():
            return "no pinned memory"
        return None

    def execute_model(self, scheduler_output: Any) -> Any:
        if self._plan is None:
            return super().execute_model(scheduler_output)
        self._plan.update(scheduler_output)
        output = super().execute_model(scheduler_output)
        if self.row_taker is not None and len(self._plan) and scheduler_output.total_num_scheduled_tokens:
            self.row_taker.take(self._plan.slices(scheduler_output, self._batch_order()))
        return output

    def _batch_order(self) -> list[str]:
        # The second model runner keeps the batch of a step with the step; the first has one batch for all.
        state = getattr(self.model_runner, "execute_model_state", None)
        batch = getattr(state, "input_batch", None) or self.model_runner.input_batch
        return list(batch.req_ids)

    def shutdown(self) -> None:
        if self.row_taker is not None:
            self.row_taker.close()
            self.row_taker = None
        super().shutdown()
