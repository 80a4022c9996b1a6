"""What a deployment chooses for one Talker engine."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.config.errors import InvalidRequest

DEFAULT_ROWS = 8192
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True)
class TalkerOptions:
    """`device`: a torch device string. `dtype`: "float32" or "bfloat16".

    `max_num_seqs`: streams that decode at once. `max_waiting`: streams accepted beyond those. `max_model_len`: rows of
    context (prompt and frames) a stream may use; None: as many as an eighth of the device's memory holds, at least
    DEFAULT_ROWS and at most the checkpoint's. `max_prefill_rows`: prompt rows computed between two decode steps.
    `load_format`: "auto" reads safetensors, "dummy" draws random weights of the configured sizes on the device.
    `kernels`: "auto" picks Triton on CUDA and plain torch elsewhere.
    `async_chunk`: chunks travel while a stream still speaks. Asynchronous output needs `async_output`, `async_chunk`,
    `async_scheduling` and pinned copies.
    `max_steps_in_flight`: steps launched whose codes the builder has not handled yet.
    Raises InvalidRequest with the field's name for a value out of range.
    """

    device: str = "cpu"
    dtype: str = "float32"
    max_num_seqs: int = 64
    max_model_len: int | None = None
    max_prefill_rows: int = 2048
    max_waiting: int = 256
    cuda_graphs: bool = True
    async_output: bool = True
    async_chunk: bool = True
    async_scheduling: bool = True
    batch_invariant: bool = False
    load_format: str = "auto"
    kernels: str = "auto"
    max_steps_in_flight: int = 2

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_model_len", "max_prefill_rows", "max_steps_in_flight"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InvalidRequest(name, f"must be at least 1, got {getattr(self, name)}")
        if self.max_waiting < 0:
            raise InvalidRequest("max_waiting", f"must not be negative, got {self.max_waiting}")
        for name, allowed in (
            ("dtype", ("float32", "bfloat16")),
            ("load_format", ("auto", "dummy")),
            ("kernels", ("auto", "torch", "triton")),
        ):
            if getattr(self, name) not in allowed:
                raise InvalidRequest(name, f"must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")

    @property
    def buckets(self) -> tuple[int, ...]:
        """Batch sizes a step is built for, ascending; the last holds every slot.

        A batch-invariant engine has one bucket only: every step then has the same shapes, so the same rounding.
        """
        if self.batch_invariant:
            return (self.max_num_seqs,)
        smaller = tuple(size for size in BUCKETS if size < self.max_num_seqs)
        return (*smaller, self.max_num_seqs)
