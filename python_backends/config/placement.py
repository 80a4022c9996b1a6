"""Which devices each replica of a stage gets, and whether their memory is enough."""

from __future__ import annotations

from python_backends.config.schema import SchemaError
from python_backends.config.stage_keys import STAGES, StageKeys

VLLM_MEMORY = 0.9  # what vLLM takes of a device unless told otherwise


def devices_of_replicas(stage: StageKeys, replicas: int, where: str) -> list[str]:
    """One device list, such as "0" or "0,1", for each replica. Raises SchemaError."""
    devices = [device.strip() for device in stage.devices.split(",")]
    if not all(device.isdigit() for device in devices):
        raise SchemaError(f"{where}.devices", f'must be cpu, or indices such as "0" or "0,1"; got {stage.devices!r}')
    if len(set(devices)) != len(devices):
        raise SchemaError(f"{where}.devices", f"names a device twice: {stage.devices!r}")
    per_replica = getattr(stage, "tensor_parallel_size", 1) * getattr(stage, "pipeline_parallel_size", 1)
    if per_replica == 1 and replicas % len(devices) == 0:
        # Several replicas may share a device; its memory decides.
        return [devices[replica % len(devices)] for replica in range(replicas)]
    if getattr(stage, "distributed_executor_backend", None) == "ray" and replicas == 1:
        return [stage.devices]  # Ray places the workers, on other machines too
    if len(devices) != per_replica * replicas:
        raise SchemaError(
            f"{where}.devices",
            f"names {len(devices)} device(s) where {replicas} replica(s) of {per_replica} device(s) each "
            f"need {per_replica * replicas}",
        )
    return [",".join(devices[at : at + per_replica]) for at in range(0, len(devices), per_replica)]


def check_memory(placed: list[tuple[StageKeys, list[str], str]]) -> None:
    """Refuse a device of which the stages ask more than there is. `placed`: stage, devices of its replicas, its key.

    Raises SchemaError.
    """
    asked: dict[str, list[tuple[float, str, str]]] = {}
    for stage, replicas, where in placed:
        share = stage.gpu_memory_utilization
        if share is None:
            share = VLLM_MEMORY if stage.stage_id == 0 else 0.0
        for devices in replicas:
            for device in devices.split(","):
                asked.setdefault(device, []).append((share, STAGES[stage.stage_id], where))
    for device, shares in asked.items():
        total = sum(share for share, _, _ in shares)
        if total > 1.0 + 1e-9:
            parts = " + ".join(f"{share:g} ({name})" for share, name, _ in shares)
            raise SchemaError(
                f"{shares[-1][2]}.gpu_memory_utilization",
                f"device {device} is asked for {total:g} of its memory: {parts}; at most 1 in all",
            )
