"""The wheel: built, installed into an empty environment, and all that it says it can do done from there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
import yaml

from tests.server import ROOT, wait_until

PROFILES = sorted(path.stem for path in (ROOT / "python_backends" / "config" / "profiles").glob("*.yaml"))


def run(*command: object, **environment: str) -> subprocess.CompletedProcess:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    return subprocess.run(
        [str(word) for word in command], env=env, cwd="/", capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A virtual environment with the wheel in it; what the wheel depends on is this interpreter's."""
    directory = tmp_path_factory.mktemp("wheel")
    # setuptools leaves its work beside the sources: a copy of what is committed or would be.
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "python_backends", "client"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    for name in [*names, "pyproject.toml", "README.md", "LICENSE"]:
        if (ROOT / name).exists():
            (directory / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, directory / "source" / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    built = run(*pip, "wheel", "--no-deps", "--wheel-dir", directory / "dist", directory / "source")
    assert built.returncode == 0, built.stderr
    (wheel,) = (directory / "dist").glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "venv"], check=True)
    python = directory / "venv" / "bin" / "python"
    installed = run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel)
    assert installed.returncode == 0, installed.stderr
    target = Path(sysconfig.get_path("purelib", vars={"base": str(directory / "venv")}))
    (target / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return directory / "venv" / "bin"


def test_every_profile_loads(environment):
    code = """
import json, sys
import client, python_backends
from python_backends.config.deploy import load_deploy_config
from python_backends.config.stage_keys import vllm_engine_args
assert vllm_engine_args()
print(json.dumps([python_backends.__file__, {name: sorted(load_deploy_config(name).stages) for name in sys.argv[1:]}]))
"""
    done = run(environment / "python", "-c", code, *PROFILES, OMNI_PLATFORM="cuda")
    assert done.returncode == 0, done.stderr
    file, stages = json.loads(done.stdout)
    assert Path(file).is_relative_to(environment.parent)
    assert stages.keys() == set(PROFILES) and all("thinker" in names for names in stages.values())


def test_it_tells_type_checkers_that_it_has_types_and_users_their_rights(environment):
    packages = environment.parent / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    assert (packages / "python_backends" / "py.typed").exists() and (packages / "client" / "py.typed").exists()
    (licence,) = packages.glob("triton_qwen3_omni-*.dist-info/licenses/LICENSE")
    assert "Apache License" in licence.read_text()


def test_a_repository_can_be_rendered(environment, tmp_path):
    done = run(environment / "qwen3-omni", "render", "--deploy-config", "cpu", "--out", tmp_path / "repository")
    assert done.returncode == 0, done.stderr
    assert str(environment.parent) in (tmp_path / "repository" / "talker" / "1" / "model.py").read_text()
    assert yaml.safe_load((tmp_path / "repository" / "deploy.yaml").read_text())
    done = run(environment / "qwen3-omni", "render", "--out", tmp_path / "default")
    assert done.returncode == 0 and str(environment.parent) in (tmp_path / "default/thinker/1/model.py").read_text()


@pytest.fixture
def short_directory():
    """A TMPDIR whose sockets' names are not too long."""
    with tempfile.TemporaryDirectory(prefix="omni-", dir="/tmp") as directory:
        yield Path(directory)


def test_serve_renders_a_repository_and_runs_the_tritonserver_of_the_path(environment, tmp_path, short_directory):
    played, noted = tmp_path / "tritonserver", tmp_path / "noted"
    played.write_text(
        f'#!/bin/sh\ncat "$2"/talker/config.pbtxt >{noted}.config\nenv >{noted}.env\n'
        f'printf "%s\\n" "$@" >{noted}.part\n'
        f'trap "exit 7" TERM\nmv {noted}.part {noted}\nwhile :; do sleep 0.1; done\n'
    )
    played.chmod(0o755)
    # Without PYTHONPATH, which may name a clone: what is installed is served.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env = inherited | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(short_directory)}
    command = [environment / "qwen3-omni", "serve", "--model", "a/b", "--deploy-config", "cpu", "--", "--log-verbose=1"]
    with subprocess.Popen([str(word) for word in command], env=env, cwd="/") as process:
        try:
            wait_until(noted.exists, 60, "tritonserver was run")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 7
        finally:
            process.kill()
    words = noted.read_text().splitlines()
    assert words[-1] == "--log-verbose=1" and "--exit-timeout-secs" in words
    assert 'name: "talker"' in Path(f"{noted}.config").read_text()
    assert "OMNI_MODEL=a/b" in Path(f"{noted}.env").read_text().splitlines()
    assert not list(short_directory.iterdir())


def test_serve_without_a_tritonserver_says_so(environment):
    done = run(environment / "qwen3-omni", "serve", "--model", "a/b", PATH="/nowhere")
    assert done.returncode == 1 and "tritonserver is not on PATH" in done.stderr


def test_ask_is_the_client(environment):
    done = run(environment / "qwen3-omni", "ask", "--url", "127.0.0.1:9", "-q", "mixed_modalities")
    assert done.returncode == 1 and done.stderr.startswith("qwen3-omni ask: error: no server is ready")
    assert "usage: qwen3-omni ask" in run(environment / "qwen3-omni", "ask", "--help").stdout
    wrong = run(environment / "qwen3-omni", "sing")
    assert wrong.returncode == 2 and "there is no command 'sing': serve, render, ask" in wrong.stderr
