"""vLLM-Omni's deploy YAMLs for this model, as its package has them: what would be served, on every platform."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import yaml

from python_backends.config.deploy import DeployError, load_deploy_config
from python_backends.config.platforms import PLATFORMS, VISIBLE_DEVICES
from python_backends.config.schema import keys_of
from python_backends.config.stage import ChunkSchedule
from python_backends.config.stage_keys import STAGE_KEYS
from python_backends.config.vllm_omni import PIPELINE_WIDE, vllm_engine_args
from tests.conftest import ENV_DIR, ROOT

# Unpacked by scripts/test.sh (requirements/unpacked.txt) and never imported.
DEPLOY = ENV_DIR / "unpacked" / "vllm_omni" / "deploy"
MOE, THINKING, MORI, DUPLEX = (
    DEPLOY / f"qwen3_omni_{name}.yaml" for name in ("moe", "moe_thinking", "moe_mori_intranode", "duplex")
)
FILES = (MOE, THINKING, MORI)
TALKER = {"temperature": 0.9, "top_k": 50, "max_tokens": 4096, "repetition_penalty": 1.05}
GREEDY_OF_ONE = {"temperature": 0.4, "top_p": 0.9, "top_k": 1, "max_tokens": 2048, "repetition_penalty": 1.05}
MOE_ARGS = {
    "moe_backend": "triton", "trust_remote_code": True, "enable_prefix_caching": False, "max_num_batched_tokens": 32768,
    "gpu_memory_utilization": 0.9,
}  # fmt: skip
THINKING_ARGS = {
    "enable_prefix_caching": True, "distributed_executor_backend": "mp", "tensor_parallel_size": 2,
    "async_scheduling": False, "enforce_eager": True, "gpu_memory_utilization": 0.9,
}  # fmt: skip
ON_A_CPU = {"gpu_memory_utilization", "moe_backend"}  # have no meaning there


def talker(fraction, graphs=True, rows=32768):
    return {"max_num_seqs": 64, "cuda_graphs": graphs, "max_prefill_rows": rows, "fraction": fraction}


def code2wav(fraction, graphs=True, streams=64, frames=4096):
    return {"max_num_seqs": streams, "cuda_graphs": graphs, "max_step_frames": frames, "fraction": fraction}


# For each file and platform: devices of the stages, vLLM's arguments, and what the Talker and Code2Wav are told.
MORI_SERVED = (
    ["0", "1", "2"], {"gpu_memory_utilization": 0.9, "enforce_eager": True},
    talker(0.9, False, None), code2wav(0.3, False, 1, 3200),
)  # fmt: skip
SERVED = {
    (MOE, "cuda"): (["0", "1", "1"], MOE_ARGS | {"compilation_config": {"custom_ops": ["+rotary_embedding"]}},
                    talker(0.6), code2wav(0.1)),
    (MOE, "rocm"): (["0", "1", "1"], MOE_ARGS, talker(0.6), code2wav(0.1, False)),
    (MOE, "npu"): (
        ["0,1", "2", "2"],
        MOE_ARGS | {"gpu_memory_utilization": 0.6, "tensor_parallel_size": 2, "max_num_batched_tokens": 8192,
                    "compilation_config": {"cudagraph_mode": "PIECEWISE"}},
        talker(0.6, rows=8192), code2wav(0.3),
    ),
    (MOE, "xpu"): (
        ["0,1,2,3", "4", "4"],
        MOE_ARGS | {"tensor_parallel_size": 4, "enforce_eager": True, "max_cudagraph_capture_size": 0},
        talker(0.6, False), code2wav(0.3, False),
    ),
    (MOE, "musa"): (["0", "1", "1"], MOE_ARGS, talker(0.6), code2wav(0.1)),
    (MOE, "cpu"): ([None] * 3, MOE_ARGS, talker(None), code2wav(None)),
    **{(MORI, platform): MORI_SERVED for platform in PLATFORMS if platform != "cpu"},
    (MORI, "cpu"): ([None] * 3, MORI_SERVED[1], talker(None, False, None), code2wav(None, False, 1, 3200)),
    **{(THINKING, platform): (["0,1"], THINKING_ARGS) for platform in PLATFORMS if platform != "cpu"},
    (THINKING, "cpu"): ([None], THINKING_ARGS),
}  # fmt: skip
SAMPLING = {
    MOE: {"thinker": {"temperature": 0.0, "max_tokens": 2048}, "talker": TALKER},
    MORI: {"thinker": GREEDY_OF_ONE, "talker": TALKER},
    THINKING: {"thinker": GREEDY_OF_ONE},
}
NO_EFFECT = {
    (MOE, "cuda"): {"stages[stage_id=1].moe_backend", "stages[stage_id=2].enable_chunked_prefill"},
    (MOE, "musa"): {"stages[stage_id=1].hf_overrides", "stages[stage_id=2].hf_overrides"},
    (MOE, "npu"): {"stages[stage_id=1].compilation_config", "stages[stage_id=2].compilation_config"},
    (MOE, "cpu"): {"stages[stage_id=0].moe_backend: no effect on the CPU"},
    (MORI, "rocm"): {"connectors.mori_connector.name", "extra.zmq_port"},
}


@pytest.fixture
def load(monkeypatch, tmp_path):
    """Load a file, or a mapping written to one, as on a machine of some platform."""

    def one(body, platform="cuda", settings=None):
        monkeypatch.setenv("OMNI_PLATFORM", platform)
        if isinstance(body, dict):
            (tmp_path / "deploy.yaml").write_text(yaml.safe_dump(body))
            body = tmp_path / "deploy.yaml"
        return load_deploy_config(body, settings)

    return one


def test_the_package_is_only_unpacked():
    """Installed, it would be imported into every engine: it is a plugin of vLLM."""
    assert importlib.util.find_spec("vllm_omni") is None


def test_the_package_has_no_other_file_for_this_model():
    assert set(DEPLOY.glob("*qwen3_omni*")) - set(DEPLOY.glob("fish_*")) == {*FILES, DUPLEX}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_deploy_yamls_of_vllm_omni_load_unchanged_and_serve_what_they_say(load, path, platform):
    config = load(path, platform)
    devices, args, *later = SERVED[path, platform]
    replicas = [replica for stage in config.replicas.values() for replica in stage]
    assert [replica.env.get(VISIBLE_DEVICES.get(platform)) for replica in replicas] == devices
    assert [",".join(replica.devices) or None for replica in replicas] == devices
    if platform == "cpu":
        args = {name: value for name, value in args.items() if name not in ON_A_CPU}
    assert replicas[0].options["engine_args"] == args
    assert replicas[0].options["max_num_seqs"] == (1 if path == THINKING else 64)
    for replica, told in zip(replicas[1:], later, strict=True):
        said = {name: replica.options.get(name) for name in told if name != "fraction"}
        assert said | {"fraction": replica.memory_fraction} == told
    assert config.modalities == (("text",) if path == THINKING else ("text", "audio"))
    assert config.sampling_defaults == SAMPLING[path] and config.seed == 42
    assert config.schedule == ChunkSchedule(4, 25)
    notes = "\n".join(config.notes)
    for name in NO_EFFECT.get((path, platform), ()):
        assert name in notes


def test_a_deploy_yaml_is_utf_8_whatever_the_locale():
    """Triton's stubs run without one, and comments of these files hold arrows and dashes."""
    code = "import sys; from python_backends.config.deploy import load_deploy_config as load; load(sys.argv[1])"
    plain = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert not MOE.read_bytes().isascii()
    subprocess.run([sys.executable, "-c", code, str(MOE)], env=plain, cwd=ROOT, check=True)


def test_a_duplex_session_mode_is_an_error(load):
    with pytest.raises(DeployError, match="session_mode: must be turn .*duplex sessions are not served.*'duplex'"):
        load(DUPLEX)
    assert load({"base_config": str(MOE), "session_mode": "turn"}).modalities == ("text", "audio")


def test_a_thin_file_over_one_of_vllm_omni(load):
    body = {"base_config": str(MOE), "platforms": {"npu": {"stages": [{"stage_id": 1, "devices": "3"}]}}}
    config = load(body, "npu")
    assert config.replicas["talker"][0].devices == ("3",)
    assert config.replicas["talker"][0].options["max_prefill_rows"] == 8192, "the base's section for npu is kept"


def test_a_thinker_only_pipeline_means_text(load):
    config = load({"base_config": str(MOE), "pipeline": "qwen3_omni_moe_thinker_only"})
    assert list(config.replicas) == ["thinker"] and config.modalities == ("text",)
    assert "1 and 2 are left out" in config.notes[0]
    assert load({"base_config": str(MOE), "pipeline": "qwen3_omni_moe"}).modalities == ("text", "audio")
    with pytest.raises(DeployError, match="pipeline: must be one of qwen3_omni_moe, qwen3_omni_moe_thinker_only"):
        load({"base_config": str(MOE), "pipeline": "qwen3_tts"})


WIDE = {
    "trust_remote_code": True, "distributed_executor_backend": "mp", "dtype": "bfloat16", "quantization": "fp8",
    "enable_prefix_caching": True, "enable_chunked_prefill": False, "pipeline_parallel_size": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", PIPELINE_WIDE)
def test_pipeline_wide_keys_are_for_stage_0_unless_it_sets_them_itself(load, name):
    def served(**stage):
        base = {"base_config": "three_gpus", name: WIDE[name]}
        devices = "0,3" if name == "pipeline_parallel_size" else "0"
        config = load(base | {"stages": [{"stage_id": 0, "devices": devices, **stage}]})
        assert config.replicas["talker"] == load("three_gpus").replicas["talker"]
        options = config.replicas["thinker"][0].options
        return options["dtype"] if name == "dtype" else options["engine_args"].get(name)

    assert set(WIDE) == set(PIPELINE_WIDE)
    assert served() == WIDE[name] and served(**{name: None}) == WIDE[name]
    own = {"distributed_executor_backend": "ray", "dtype": "float32", "quantization": "awq"}.get(name)
    if own is None and name != "pipeline_parallel_size":
        own = not WIDE[name]
    if own is not None:
        assert served(**{name: own}) == own


def test_other_top_level_keys_are_taken_and_named_as_without_effect(load):
    taken = {
        "model_runner": "v2", "edges": [{"from": 0, "to": 1}], "active_stream_window": 8, "custom_voice_dir": "voices",
        "duplex_session": {"max_sessions": 4},
    }  # fmt: skip
    section = {"platforms": {"cuda": {"model_runner": "v1"}}}
    notes = load({"base_config": "one_gpu", "data_parallel_size": 1} | taken | section).notes
    assert [note.split(":")[0] for note in notes] == list(taken)
    for name, wrong in (("data_parallel_size", 2), ("model_runner", "v3"), ("session_mode", "chat"), ("edges", 3)):
        with pytest.raises(DeployError, match=f"{name}: must be"):
            load({"base_config": "one_gpu", name: wrong})


@pytest.mark.parametrize("stage", [1, 2])
def test_later_stages_take_every_engine_argument_of_vllm(load, stage):
    own = keys_of(STAGE_KEYS[stage])
    foreign = sorted(vllm_engine_args() - set(own))
    (note,) = load("one_gpu", settings=[f"stages.{stage}.max_cudagraph_capture_size=8"]).notes
    assert "max_cudagraph_capture_size: no effect unless it is 0" in note
    config = load({"base_config": "one_gpu", "stages": [{"stage_id": stage} | dict.fromkeys(foreign, "x")]})
    assert config.replicas == load("one_gpu").replicas
    assert [note.split(":")[0] for note in config.notes] == [f"stages[stage_id={stage}].{name}" for name in foreign]
    assert all("no effect" in note for note in config.notes)


@pytest.mark.parametrize(
    ("where", "wrong", "meant"),
    [
        ({"stage_id": 0}, "moe_backnd", "moe_backend"),
        ({"stage_id": 1}, "moe_backnd", "moe_backend"),
        ({"stage_id": 2}, "enable_chunked_prefil", "enable_chunked_prefill"),
        ({"stage_id": 2}, "max_num_batched_token", "max_num_batched_tokens"),
        (None, "enable_prefix_cachin", "enable_prefix_caching"),
        (None, "session_mod", "session_mode"),
    ],
)
def test_a_misspelt_key_is_an_error_that_names_the_nearest(load, where, wrong, meant):
    body = {wrong: 1} if where is None else {"stages": [where | {wrong: 1}]}
    with pytest.raises(DeployError, match=f"{wrong}: unknown key; did you mean {meant}?"):
        load({"base_config": "one_gpu"} | body)
    if where is not None and where["stage_id"] != 0:
        with pytest.raises(DeployError, match=f"engine_args.{wrong}: unknown key; did you mean {meant}?"):
            load({"base_config": "one_gpu", "stages": [where | {"engine_args": {wrong: 1}}]})


@pytest.mark.parametrize("name", [
    "MoriTransferEngineConnector", "MooncakeConnector", "MooncakeStoreConnector", "MooncakeTransferEngineConnector",
    "YuanrongConnector", "YuanrongTransferEngineConnector", "NixlConnector",
])  # fmt: skip
def test_connectors_of_transfer_engines_are_taken_with_a_note(load, name):
    extra = {"host": "10.0.0.1", "protocol": "rdma", "codec_chunk_frames": 10}
    body = {"base_config": "one_gpu", "connectors": {"data_plane": {"name": name, "extra": extra}}}
    config = load(body)
    assert config.schedule.steady == 10
    (note,) = config.notes
    assert "over ZeroMQ" in note and "extra.host" in note and "extra.protocol" in note
    body["connectors"]["data_plane"]["extra"] = {"codec_chunk_frame": 10}
    with pytest.raises(DeployError, match="codec_chunk_frame: unknown key; did you mean codec_chunk_frames"):
        load(body)
    body["connectors"]["data_plane"] |= {"name": "SharedMemoryConnector", "extra": {"host": "10.0.0.1"}}
    with pytest.raises(DeployError, match="extra.host: unknown key"):
        load(body)


def test_nested_shapes_of_a_stage_mean_what_flat_ones_do(load):
    args = {"engine_args": {"max_num_seqs": 8, "block_size": 32}, "engine_extras": {"block_size": 16, "seed": 3}}
    runtime = {"devices": "1,2", "num_replicas": 2, "env": {"A": 1}}
    rocm = {"stages": [{"stage_id": 1, "runtime": {"devices": "3", "num_replicas": 1}}]}
    nested = {
        "base_config": "two_gpus",
        "stages": [{"stage_id": 0, **args}, {"stage_id": 1, "runtime": runtime}],
        "platforms": {"rocm": rocm},
    }
    config = load(nested)
    thinker = config.replicas["thinker"][0].options
    assert thinker["max_num_seqs"] == 8
    assert thinker["engine_args"] == {"gpu_memory_utilization": 0.9, "block_size": 32, "seed": 3}
    assert [replica.devices for replica in config.replicas["talker"]] == [("1",), ("2",)]
    assert config.replicas["talker"][0].env["A"] == "1"
    assert [replica.devices for replica in load(nested, "rocm").replicas["talker"]] == [("3",)]
    # The last one to say a value counts, wherever it stands.
    over = load(nested, settings=["stages.0.block_size=64", "stages.1.engine_args.max_num_seqs=5"])
    assert over.replicas["thinker"][0].options["engine_args"]["block_size"] == 64
    assert over.replicas["talker"][0].options["max_num_seqs"] == 5
    with pytest.raises(DeployError, match="runtime: unknown key"):
        load({"base_config": "one_gpu", "stages": [{"stage_id": 1, "runtime": {"device": "1"}}]})


def test_null_means_the_default(load):
    settings = ["stages.1.max_model_len=null", "stages.2.num_replicas=null", "max_queued=null", "timeouts=null"]
    assert load("one_gpu", settings=settings).keys.max_queued == 256
    assert load("one_gpu", settings=settings).replicas == load("one_gpu").replicas


def test_dtype_auto_in_later_stages_is_their_default(load):
    settings = ["stages.1.dtype=auto", "stages.2.dtype=auto"]
    assert load("one_gpu", settings=settings).replicas == load("one_gpu").replicas


def test_async_chunk_of_a_stage_must_be_the_servers(load):
    assert load("one_gpu", settings=["stages.1.async_chunk=true"]).replicas == load("one_gpu").replicas
    with pytest.raises(DeployError, match="stage_id=1.*async_chunk: differs from the top level's"):
        load("one_gpu", settings=["stages.1.async_chunk=false"])
