from typing import Any

from python_backends.thinker.capture.worker import CaptureWorker
from python_backends.thinker.vllm_patches.cpu_worker import SeededCpuWorker


class CaptureCpuWorker(CaptureWorker, SeededCpuWorker):
    """vLLM's CPU worker with hidden-row capture."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        from vllm.distributed import get_pp_group

        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            # What the stage before sends is received into these. vLLM makes them in a profiling run, which its CPU
            # worker skips where nothing is compiled.
            runner.intermediate_tensors = runner.get_model().make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
