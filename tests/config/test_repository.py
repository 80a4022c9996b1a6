"""Rendered model repositories, and the committed one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from python_backends.config.deploy import load_deploy_config
from python_backends.config.repository import repository_files

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "render_repository.py"


def test_the_committed_repository_is_the_default_rendering():
    committed = {
        str(path.relative_to(ROOT / "model_repository")): path.read_text()
        for path in (ROOT / "model_repository").rglob("*")
        if path.suffix in (".py", ".pbtxt")
    }
    assert committed == repository_files(), "run scripts/render_repository.py --out model_repository"


def test_one_instance_for_each_replica(monkeypatch):
    monkeypatch.setenv("OMNI_PLATFORM", "cuda")
    files = repository_files(load_deploy_config("three_gpus_replicas"), ROOT)
    counts = {
        name: files[f"{name}/config.pbtxt"].count("count: 2")
        for name in ("qwen3_omni", "thinker", "talker", "code2wav")
    }
    assert counts == {"qwen3_omni": 0, "thinker": 0, "talker": 1, "code2wav": 1}
    assert str(ROOT) in files["talker/1/model.py"]


def test_a_text_only_profile_has_no_other_models():
    names = {name.split("/")[0] for name in repository_files(load_deploy_config("thinking"), ROOT)}
    assert names == {"qwen3_omni", "thinker", "deploy.yaml"}


def render(*args):
    return subprocess.run([sys.executable, SCRIPT, *map(str, args)], capture_output=True, text=True)


def test_the_script_writes_what_it_read(tmp_path, monkeypatch):
    out = tmp_path / "repository"
    done = render("--deploy-config", "two_gpus", "--set", "stages.1.replicas=2", "--set", "max_queued=3", "--out", out)
    assert done.returncode == 0, done.stderr
    again = load_deploy_config(out / "deploy.yaml")
    assert again.keys.max_queued == 3 and len(again.replicas["talker"]) == 2
    assert "../deploy.yaml" in (out / "talker" / "config.pbtxt").read_text()
    assert yaml.safe_load((out / "deploy.yaml").read_text())["max_queued"] == 3
    assert render("--deploy-config", "thinking", "--out", out).returncode == 0
    assert not (out / "talker").exists(), "an older rendering is replaced"


def test_the_script_refuses_with_a_sentence(tmp_path):
    assert "no such file, and no profile" in render("--deploy-config", "moon", "--out", tmp_path / "x").stderr
    (tmp_path / "precious").write_text("")
    done = render("--deploy-config", "cpu", "--out", tmp_path)
    assert done.returncode == 2 and "not empty" in done.stderr and (tmp_path / "precious").exists()
