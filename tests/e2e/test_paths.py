"""A server whose paths hold what a shell would interpret: Triton starts its stubs without quoting them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from client.streaming import OmniClient
from tests.e2e.test_profiles_rules import PLAYED, PROFILE, SHORT
from tests.server import ROOT, Server


@pytest.fixture
def copies(tiny_checkpoint, tmp_path):
    """This repository and its environments under paths with white space."""
    root, environments = tmp_path / "a (repo)", tmp_path / "an env"
    root.mkdir()
    for name in ("scripts", "python_backends", "model_repository", "requirements", "tests"):
        shutil.copytree(ROOT / name, root / name)
    environments.mkdir()
    present = Path(os.environ.get("OMNI_ENV_DIR") or ROOT / ".env")
    for name in ("main", "stub", "triton"):
        (environments / name).symlink_to((present / name).resolve())
    shutil.copytree(present / "stamps", environments / "stamps")
    # The stamp names the directory, and this one is unpacked already.
    script = (
        'source "$0/scripts/lib.sh"; version=$("$STUB_ENV/bin/python" -c "import sys; '
        "print('%d.%d' % sys.version_info[:2])\"); "
        'write_stamp triton "$(key_of "$ROOT/requirements/triton.txt" "$version" "$TRITON_DIR")"'
    )
    env = os.environ | {"OMNI_ENV_DIR": str(environments)}
    subprocess.run(["bash", "-euc", script, root], env=env, check=True)
    return root, environments


@pytest.mark.parametrize("rendered", [True, False], ids=["rendered", "committed"])
def test_it_serves(copies, tiny_checkpoint, tmp_path, rendered):
    root, environments = copies
    profile = tmp_path / "a profile.yaml"
    profile.write_text(yaml.safe_dump(PROFILE))
    played = {"ENGINE_PYTHON": str(root / "tests" / "played_engine_python")}
    env = PLAYED | played | {"OMNI_ENV_DIR": str(environments)}
    if not rendered:
        env["OMNI_DEPLOY_CONFIG"] = str(profile)
    log, deploy = tmp_path / "server.log", profile if rendered else None
    with Server(tiny_checkpoint, log, deploy, ready_s=60, env=env, root=root) as server:

        async def run():
            async with OmniClient(server.url) as client:
                return await client.ask(SHORT)

        answer = asyncio.run(run())
    assert answer.text and answer.audio.size
    assert (environments / "triton").is_symlink(), "nothing was unpacked"
