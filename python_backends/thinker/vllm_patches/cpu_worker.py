"""vLLM's CPU worker, for requests that bring a seed and whose prompt takes more than one step.

Around: vLLM 0.32. No longer needed when a seeded request with a prompt longer than a step outlives vLLM's own worker.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from vllm.v1.worker.cpu_worker import CPUWorker


class SeededCpuWorker(CPUWorker):
    """In a step that does not finish a prompt vLLM draws an id, drops it, and turns the request's generator back by
    its offset. A generator of the CPU has none: the engine would die. So here that step draws from the common one.
    """

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        runner = self.model_runner
        generators = runner.input_batch.generators
        unfinished = np.flatnonzero(runner.discard_request_mask.np[: runner.input_batch.num_reqs])
        kept = {int(at): generators.pop(int(at)) for at in unfinished if int(at) in generators}
        try:
            return super().sample_tokens(*args, **kwargs)
        finally:
            generators.update(kept)
