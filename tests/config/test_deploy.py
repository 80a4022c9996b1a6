"""The deploy YAML: what loads, what it means, what is refused and how that is said."""

from __future__ import annotations

import pytest
import yaml

from python_backends.code2wav.options import Code2WavOptions
from python_backends.config.deploy import DeployError, load_deploy_config
from python_backends.config.deploy_layers import profile_names
from python_backends.config.platforms import PLATFORMS, detect_platform
from python_backends.config.sampling import TalkerSampling
from python_backends.config.stage import ChunkSchedule
from python_backends.config.stage_keys import STAGES
from python_backends.config.vllm_omni import vllm_engine_args
from python_backends.thinker.options import ThinkerOptions


@pytest.fixture
def on(monkeypatch):
    """Load as on a machine of some platform."""
    monkeypatch.delenv("OMNI_DEPLOY_CONFIG", raising=False)

    def load(platform, path=None, settings=None):
        monkeypatch.setenv("OMNI_PLATFORM", platform)
        return load_deploy_config(path, settings)

    return load


@pytest.fixture
def written(tmp_path):
    """Write a YAML body to a file."""

    def write(body, name="deploy.yaml"):
        path = tmp_path / name
        path.write_text(body if isinstance(body, str) else yaml.safe_dump(body))
        return path

    return write


def env_of(config, stage):
    return [replica.env.get("CUDA_VISIBLE_DEVICES") for replica in config.replicas[stage]]


@pytest.mark.parametrize("platform", ["cuda", "cpu"])
@pytest.mark.parametrize("name", profile_names())
def test_every_profile_loads_and_its_engines_take_the_options(on, name, platform):
    config = on(platform, name)
    for stage, options_class in (("thinker", ThinkerOptions), ("code2wav", Code2WavOptions)):
        for replica in config.replicas.get(stage, []):
            options_class(**({"model": "x"} if stage == "thinker" else {}) | replica.options)
    assert not config.notes


def test_the_profiles_place_stages_as_their_names_say(on):
    where = {
        name: [env_of(on("cuda", name), stage) for stage in STAGES] for name in profile_names() if name != "thinking"
    }
    assert where["one_gpu"] == [["0"], ["0"], ["0"]]
    assert where["two_gpus"] == [["0"], ["1"], ["1"]]
    assert where["three_gpus"] == [["0"], ["1"], ["2"]]
    assert where["three_gpus_replicas"] == [["0"], ["1", "2"], ["1", "2"]]
    assert where["cpu"] == [[None], [None], [None]]
    assert on("cuda", "thinking").modalities == ("text",) and list(on("cuda", "thinking").replicas) == ["thinker"]


def test_the_default_profile_follows_the_machine(on, monkeypatch):
    assert on("cuda").path.stem == "one_gpu" and on("cpu").path.stem == "cpu"
    monkeypatch.setenv("OMNI_DEPLOY_CONFIG", "two_gpus")
    assert on("cuda").path.stem == "two_gpus"
    monkeypatch.setenv("OMNI_PLATFORM", "quantum")
    with pytest.raises(ValueError, match="OMNI_PLATFORM.*cuda, rocm"):
        detect_platform()


def test_first_chunks_of_one_gpu_grow_under_load(on):
    assert on("cuda", "one_gpu").schedule == ChunkSchedule(1, 25, doubling=True, loaded_initial=4, idle_streams=4)


def test_float32_on_a_gpu_is_exact_in_triton_kernels(on):
    """Without the variable Triton's float32 products, vLLM's too, are TF32; the operator's own setting wins."""
    overrides = ["stages.0.dtype=float32", "stages.1.dtype=float32", "stages.1.env={TRITON_F32_DEFAULT: tf32}"]
    exact = {name: on("cuda", "one_gpu", overrides).replicas[name][0].env for name in ("thinker", "talker", "code2wav")}
    assert exact["thinker"]["TRITON_F32_DEFAULT"] == "ieee" and exact["talker"]["TRITON_F32_DEFAULT"] == "tf32"
    assert "TRITON_F32_DEFAULT" not in exact["code2wav"]
    assert on("cpu", "cpu").replicas["talker"][0].env == {}


def test_a_platform_section_is_merged_deep_by_stage_id(on, written):
    path = written({
        "base_config": "one_gpu",
        "stages": [{"stage_id": 1, "default_sampling_params": {"temperature": 0.5, "top_k": 9}}],
        "platforms": {"cuda": {"stages": [
            {"stage_id": 1, "default_sampling_params": {"top_k": 7}}, {"stage_id": 0, "max_num_seqs": 8},
        ]}},
    })  # fmt: skip
    assert on("cuda", path).sampling_defaults["talker"] == {"temperature": 0.5, "top_k": 7}
    assert on("cuda", path).replicas["thinker"][0].options["max_num_seqs"] == 8
    assert on("rocm", path).sampling_defaults["talker"]["top_k"] == 9


def test_only_what_is_set_overrides_the_profile(on, written):
    path = written({"base_config": "two_gpus", "max_in_flight": 3, "stages": [{"stage_id": 2, "max_num_seqs": 5}]})
    config, profile = on("cuda", path), on("cuda", "two_gpus")
    assert config.keys.max_in_flight == 3 and config.replicas["code2wav"][0].options["max_num_seqs"] == 5
    assert config.replicas["thinker"] == profile.replicas["thinker"] and config.schedule == profile.schedule
    over = on("cuda", path, ["stages.2.max_num_seqs=6", "async_chunk=false"])
    assert over.replicas["code2wav"][0].options["max_num_seqs"] == 6
    assert over.schedule.steady == 0 and over.keys.max_in_flight == 3


def test_a_base_may_be_a_file_beside_and_not_a_circle(on, written):
    written({"base_config": "one_gpu", "max_queued": 1}, "base.yaml")
    assert on("cuda", written({"base_config": "base.yaml"})).keys.max_queued == 1
    written({"base_config": "loop2.yaml"}, "loop1.yaml")
    with pytest.raises(DeployError, match="circle"):
        on("cuda", written({"base_config": "loop1.yaml"}, "loop2.yaml"))


def test_switches_reach_the_engines(on):
    config = on("cuda", "two_gpus", ["cuda_graphs=false", "async_output=false", "async_chunk=false"])
    assert config.replicas["thinker"][0].options["engine_args"]["enforce_eager"] is True
    talker = config.replicas["talker"][0].options
    assert (talker["cuda_graphs"], talker["async_output"], talker["async_chunk"]) == (False, False, False)
    assert config.replicas["code2wav"][0].options["cuda_graphs"] is False
    one_stage = on("cuda", "two_gpus", ["stages.2.enforce_eager=true"])
    assert [one_stage.replicas[s][0].options["cuda_graphs"] for s in ("talker", "code2wav")] == [True, False]


def test_vllm_arguments_pass_through_beside_the_keys(on):
    settings = ["stages.0.hf_overrides={a: 1}", "stages.0.compilation_config.mode=0", "stages.0.kv_cache_dtype=fp8",
                "stages.0.swap_space_of_another_version=4", "stages.0.block_size=32"]  # fmt: skip
    with pytest.raises(DeployError, match="swap_space_of_another_version: unknown key"):
        on("cuda", "one_gpu", settings)
    settings[3] = "stages.0.engine_args.swap_space_of_another_version=4"
    args = on("cuda", "one_gpu", settings).replicas["thinker"][0].options["engine_args"]
    assert args == {
        "gpu_memory_utilization": 0.75, "hf_overrides": {"a": 1}, "compilation_config": {"mode": 0},
        "kv_cache_dtype": "fp8", "swap_space_of_another_version": 4, "block_size": 32,
    }  # fmt: skip


def test_the_list_of_vllm_arguments_has_all_of_the_installed_vllm():
    from dataclasses import fields

    from vllm.engine.arg_utils import AsyncEngineArgs

    installed = {item.name for item in fields(AsyncEngineArgs) if not item.name.startswith("_")}
    assert installed - {"model"} <= vllm_engine_args()


def test_replicas_share_out_the_devices(on):
    def placed(devices, replicas, *more):
        return env_of(
            on("cuda", "two_gpus", [f"stages.1.devices='{devices}'", f"stages.1.replicas={replicas}", *more]), "talker"
        )

    assert placed("1,2", 2) == ["1", "2"] and placed("1", 3) == ["1", "1", "1"] and placed("1,2", 4) == ["1", "2"] * 2
    thinkers = ["stages.0.devices='0,1,2,3'", "stages.0.num_replicas=2", "stages.0.tensor_parallel_size=2"]
    config = on("cuda", "two_gpus", [*thinkers, "stages.1.devices='4'", "stages.2.devices='4'"])
    assert env_of(config, "thinker") == ["0,1", "2,3"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["async_chnk=true"], "async_chnk: unknown key; did you mean async_chunk"),
        (["async_chunk=1"], "async_chunk: must be true or false, got 1"),
        (["max_in_flight=0"], "max_in_flight: must be an integer, at least 1, got 0"),
        (["timeouts.total_s=-1"], "timeouts.total_s: must be a number, above 0, got -1"),
        (["timeouts.lunch_s=1"], "timeouts.lunch_s: unknown key"),
        (["timeouts.total_s=.inf"], "timeouts.total_s: must be a number, above 0, got inf"),
        (["stages.1.env={'A=B': x}"], "env: must be a mapping of environment variables"),
        (["stages.1.max_num_seqs=many"], "max_num_seqs: must be an integer"),
        (["stages.1.devices=1"], "devices: must be a string such as"),
        (["stages.1.max_num_seq=3"], "max_num_seq: unknown key; did you mean max_num_seqs"),
        (["stages.1.tensor_parallel_size=2"], "tensor_parallel_size: must be an integer, from 1 to 1"),
        (["stages.0.colour=red"], "colour: unknown key; .*vLLM's engine arguments"),
        (["stages.2.dtype=int3"], "dtype: must be one of float32, bfloat16"),
        (["platforms={amiga: {stages: []}}"], "platforms.amiga: unknown platform; allowed: cuda"),
        (["platforms={npu: {stages: [{stage_id: 1, colour: 3}]}}"], r"platforms.npu.stages\[0\].colour: unknown key"),
        (["connectors.data_plane.name=Pigeon"], "connectors.data_plane.name: must be one of ZmqConnector, Shared"),
        (["connectors.data_plane.extra.codec_chunk_frames=0"], "codec_chunk_frames: must be an integer, at least 1"),
        (["connectors.data_plane.extra.initial_codec_chunk_frames=now"], "at least 1 or one of auto"),
    ],
)
def test_unknown_keys_and_wrong_types_name_the_key_and_what_is_allowed(on, written, settings, message):
    with pytest.raises(DeployError, match=message):
        on("cuda", "two_gpus", settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["stages.1.input_connectors={from_stage_0: post}"], "unknown connector 'post'; connectors: data_plane"),
        (["stages.2.input_connectors.from_stage_0=data_plane"], "unknown key 'from_stage_0'; allowed: from_stage_1"),
        (["stages.1.output_connectors.to_stage_2=post"], "output_connectors: unknown connector 'post'"),
        (["stages.2.output_connectors.to_stage_3=data_plane"], "unknown key 'to_stage_3'; none here"),
        (["stages.1.replicas=2", "stages.1.num_replicas=3"], "num_replicas: is 3, and replicas"),
        (["stages.1.load_format=foo"], "load_format: must be auto or dummy, got 'foo'"),
        (["stages.0.devices='1'", "stages.1.gpu_memory_utilization=0.6"],
         r"device 1 is asked for 1.5 of its memory: 0.9 \(thinker\) \+ 0.6 \(talker\)"),
        (["stages.1.replicas=2", "stages.1.gpu_memory_utilization=0.6"], "device 1 is asked for 1.2"),
        (["stages.1.replicas=3", "stages.1.devices='1,2'"], r"names 2 device\(s\) where 3 replica\(s\)"),
        (["stages.0.tensor_parallel_size=2"], r"names 1 device\(s\) where 1 replica\(s\) of 2"),
        (["stages.1.devices='1,1'"], "names a device twice"),
        (["stages.1.devices=gpu1"], "must be cpu, or indices"),
        (["stages.1.default_sampling_params.heat=1"], "default_sampling_params.heat: unknown field"),
        (["stages.1.default_sampling_params.top_p=2"], "default_sampling_params.top_p: must be a number"),
        (["stages.1.default_sampling_params.seed=-2"], "seed: must be an integer"),
        (["stages.1.default_sampling_params.seed=1", "stages.0.default_sampling_params.seed=2"], "must be equal"),
    ],
)  # fmt: skip
def test_impossible_combinations_are_refused(on, settings, message):
    with pytest.raises(DeployError, match=message) as caught:
        on("cuda", "two_gpus", settings)
    assert "two_gpus.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"stages": [{"stage_id": 0}, {"stage_id": 1}, {"stage_id": 2}]}, "async_chunk needs a connector between two"),
        ({"stages": [{"stage_id": 1}]}, "stage 0 .* is missing"),
        ({"stages": [{"stage_id": 0}, {"stage_id": 1}]}, "stages 1 and 2 make speech together"),
        ({"stages": [{"stage_id": 0}], "modalities": ["text", "audio"]}, "audio needs stages 1 and 2"),
        ({"stages": [{"stage_id": 0}, {"stage_id": 0}]}, r"stages\[1\].stage_id: 0 is there twice"),
        ({"stages": [{"stage_id": 7}]}, "must be 0 .* got 7"),
        ({"stages": [{}]}, "stage_id: must be 0"),
        ({"stages": ["thinker"]}, "must be a mapping with the keys of a stage"),
        ({"stages": {}}, "must be a list of stages"),
        ({"base_config": "moon"}, "no such file, and no profile of that name; profiles: cpu, one_gpu"),
        ("async_chunk: [", "deploy.yaml"),
        ("max_in_flight: 3\nmax_in_flight: 4", "max_in_flight: is given twice"),
        ("stages: [{stage_id: [0]}]", "stages\\[0\\].stage_id: must be 0"),
        ("stages: " + "[" * 5000, "is nested too deeply"),
        ("- 1", "must be a mapping"),
    ],
)  # fmt: skip
def test_files_that_cannot_be(on, written, body, message):
    path = written(body)
    with pytest.raises(DeployError, match=message) as caught:
        on("cuda", path)
    assert str(path.parent) in str(caught.value)


def test_an_error_in_a_base_names_the_base(on, written):
    base = written({"max_queued": "many"}, "base.yaml")
    with pytest.raises(DeployError, match="max_queued") as caught:
        on("cuda", written({"base_config": "base.yaml"}))
    assert str(caught.value).startswith(str(base))


def test_without_connectors_full_payload_mode_loads(on, written):
    path = written({"async_chunk": False, "stages": [{"stage_id": n, "gpu_memory_utilization": 0.3} for n in range(3)]})
    assert on("cuda", path).schedule.steady == 0


def test_every_platform_has_a_section(on, written):
    body = {
        "base_config": "one_gpu",
        "platforms": {name: {"stages": [{"stage_id": 0, "max_num_seqs": 3}]} for name in PLATFORMS},
    }
    for name in PLATFORMS:
        assert on(name, written(body)).replicas["thinker"][0].options["max_num_seqs"] == 3


def test_a_settings_text_must_be_key_equals_value(on):
    for text in ("async_chunk", "stages.x.replicas=1", "stages.1=2", "=3", "a=["):
        with pytest.raises(DeployError, match="--set"):
            on("cuda", "one_gpu", [text])


def test_a_connector_may_be_named_by_the_sender_alone(on, written):
    stages = [{"stage_id": n, "gpu_memory_utilization": 0.3} for n in range(3)]
    for n in (0, 1):
        stages[n]["output_connectors"] = {f"to_stage_{n + 1}": "post"}
    connectors = {"post": {"extra": {"initial_codec_chunk_frames": 2, "codec_chunk_frames": 8}}}
    assert on("cuda", written({"connectors": connectors, "stages": stages})).schedule == ChunkSchedule(2, 8)


@pytest.mark.parametrize(
    ("name", "value"), [("load_format", "safetensors"), ("limit_mm_per_prompt", {"image": 2}), ("quantization", "fp8")]
)
def test_what_stage_0_says_reaches_vllm(on, written, name, value):
    path = written({"base_config": "one_gpu", "stages": [{"stage_id": 0, name: value}]})
    assert on("cuda", path).replicas["thinker"][0].options["engine_args"][name] == value


def test_ray_places_the_workers_of_one_replica(on):
    settings = ["tensor_parallel_size=8", "distributed_executor_backend=ray", "devices='0,1'"]
    placed = on("cuda", "two_gpus", [f"stages.0.{setting}" for setting in settings] + ["stages.1.devices='2'"])
    assert env_of(placed, "thinker") == ["0,1"]


@pytest.mark.parametrize("name", ["predictor_temperature", "predictor_top_k", "predictor_top_p"])
def test_the_code_predictors_sampling_is_the_talkers_alone(on, name):
    given = f"default_sampling_params.{name}=1"
    assert on("cuda", "one_gpu", [f"stages.1.{given}"]).sampling_defaults["talker"] == {name: 1}
    with pytest.raises(DeployError, match=f"{name}: unknown field"):
        on("cuda", "one_gpu", [f"stages.0.{given}"])


def test_minus_one_and_zero_both_mean_all_ids(on):
    for value in (-1, 0):
        config = on("cuda", "one_gpu", [f"stages.1.default_sampling_params.top_k={value}"])
        assert TalkerSampling(**config.sampling_defaults["talker"]).top_k == 0
