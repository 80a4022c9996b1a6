from vllm.v1.worker.gpu_worker import Worker

from python_backends.thinker.capture.worker import CaptureWorker


class CaptureGpuWorker(CaptureWorker, Worker):
    """vLLM's CUDA worker with hidden-row capture."""
