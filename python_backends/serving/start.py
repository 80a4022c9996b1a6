"""How the models of one server start together: one configuration, failures told to the model that waits for all."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from pathlib import Path

from python_backends.config.deploy import DeployConfig, load_deploy_config
from python_backends.config.errors import StageFailed
from python_backends.serving.replicas import Replicas

log = logging.getLogger(__name__)
_FAILED = ".failed"
# A stage reports its own time-out; the model that waits for it must not be quicker.
_GRACE_S = 30.0


def deploy_config_of(args: dict) -> DeployConfig:
    """`OMNI_DEPLOY_CONFIG` if set, else what the repository was rendered for, else the default. Raises DeployError.

    `args` are those of Triton's `initialize`.
    """
    path = None
    parameter = json.loads(args["model_config"]).get("parameters", {}).get("deploy_config")
    if parameter and not os.environ.get("OMNI_DEPLOY_CONFIG"):
        path = Path(args["model_repository"]) / parameter["string_value"]
    return load_deploy_config(path)


def report_failed_start(runtime_dir: Path, instance: str, error: BaseException) -> None:
    """Leave word for the models that wait (`wait_for_stages`, `has_failed`): this one will never be there."""
    # Without the directory another stage has failed before and the server ends already.
    with contextlib.suppress(FileNotFoundError):
        (runtime_dir / f"{instance}{_FAILED}").write_text(str(error) or type(error).__name__, "utf-8")


def has_failed(runtime_dir: Path) -> bool:
    """Whether a model of this server has failed to load."""
    return not runtime_dir.is_dir() or any(runtime_dir.glob(f"*{_FAILED}"))


def wait_for_stages(runtime_dir: Path, stages: dict[str, Replicas], deploy: DeployConfig) -> None:
    """Return when every replica of every stage can serve. Raises StageFailed that names the stage."""
    # Engines that share devices load in turn, in the worst case all of them.
    turns = sum(bool(replica.devices) for replicas in deploy.replicas.values() for replica in replicas)
    deadline = time.monotonic() + deploy.keys.stage_init_timeout_s * max(turns, 1) + _GRACE_S
    missing = dict(stages)
    while missing:
        if not runtime_dir.is_dir():
            raise StageFailed(f"the runtime directory {runtime_dir} was removed while the stages were starting")
        for failed in runtime_dir.glob(f"*{_FAILED}"):
            reason = failed.read_text("utf-8")
            # The server ends now; nothing in the directory is of use to anybody.
            shutil.rmtree(runtime_dir, ignore_errors=True)
            raise StageFailed(reason)
        for name in [name for name, calls in missing.items() if calls.count() == len(deploy.replicas[name])]:
            del missing[name]
        if missing and time.monotonic() > deadline:
            raise StageFailed(f"{', '.join(missing)}: not ready in time; see the log")
        if missing:
            time.sleep(0.05)
    log.info("all stages are ready")
