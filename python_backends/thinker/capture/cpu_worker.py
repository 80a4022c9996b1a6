from vllm.v1.worker.cpu_worker import CPUWorker

from python_backends.thinker.capture.worker import CaptureWorker


class CaptureCpuWorker(CaptureWorker, CPUWorker):
    """vLLM's CPU worker with hidden-row capture."""
