"""Every command of the published manual, with our program's name: its files, its summary and what the server says."""

from __future__ import annotations

import asyncio
import re
import shlex
import wave
from dataclasses import dataclass, field

import numpy as np
import pytest

from client.media import file_part
from client.queries import BUNDLED, QUERIES
from client.streaming import OmniClient
from tests.client.runner import SMALL, Run, run
from tests.server import ROOT

SEED = 11
TEN = BUNDLED / "text_prompts_10.txt"
AUDIO = file_part("audio", BUNDLED / "greeting.wav")
WEATHER = file_part("audio", BUNDLED / "weather.wav")
IMAGE = file_part("image", BUNDLED / "hill.png")
FILM, HEARD = (
    file_part("video", BUNDLED / "ball.mp4", num_frames=16, use_audio_in_video=heard) for heard in (False, True)
)
FOUR_FRAMES = file_part("video", BUNDLED / "ball.mp4", num_frames=4, use_audio_in_video=False)


@dataclass(frozen=True)
class Command:
    """`words` as in the manual; what they ask: `media` of a query of `kind`, `prompts`, `modalities`."""

    words: str
    kind: str
    media: list[dict] = field(default_factory=list)
    modalities: tuple[str, ...] = ("text", "audio")
    prompts: tuple[str, ...] = ()

    def bodies(self) -> list[dict]:
        """What the server is asked, by hand."""
        found = []
        for index, prompt in enumerate(self.prompts or [QUERIES[self.kind].question]):
            content = [*self.media, {"type": "text", "text": prompt}] if self.media else prompt
            thinker = {"temperature": 0.9, "top_p": 0.9, "top_k": -1, "repetition_penalty": 1.05, "max_tokens": 10}
            found.append(
                {
                    "messages": [{"role": "user", "content": content}],
                    "modalities": list(self.modalities),
                    "seed": SEED + index,
                    "audio_format": "int16",
                    "sampling": {"thinker": thinker, "talker": {"top_k": 50, "max_tokens": 12}},
                }
            )
        return found


def lines() -> tuple[str, ...]:
    return tuple(line for line in TEN.read_text(encoding="utf-8").splitlines() if line)


MANUAL = {
    "single": Command("--query-type use_audio", "use_audio", [AUDIO]),
    "old names": Command("--enable-stats --stage-configs-path a.yaml -q use_audio", "use_audio", [AUDIO]),
    "tensor parallel": Command(
        "--query-type use_audio --init-sleep-seconds 90 --deploy-config tensor_parallel.yaml", "use_audio", [AUDIO]
    ),
    "ten prompts": Command(f"--query-type text --txt-prompts {TEN} --py-generator", "text", prompts=lines()),
    "text only": Command("--query-type use_audio --modalities text", "use_audio", [AUDIO], ("text",)),
    "audio only": Command("--query-type text --modalities audio", "text", [], ("audio",)),
    "video file": Command(f"-q use_video --video-path {BUNDLED}/ball.mp4 --num-frames 4", "use_video", [FOUR_FRAMES]),
    "image file": Command(f"-q use_image --image-path {BUNDLED}/hill.png", "use_image", [IMAGE]),
    "audio file": Command(f"-q use_audio --audio-path {BUNDLED}/weather.wav", "use_audio", [WEATHER]),
    "mixed": Command(
        f"-q mixed_modalities --video-path {BUNDLED}/ball.mp4 --image-path {BUNDLED}/hill.png "
        f"--audio-path {BUNDLED}/weather.wav",
        "mixed_modalities",
        [WEATHER, IMAGE, FILM],
    ),
    "audios": Command("-q multi_audios", "use_multi_audios", [AUDIO, WEATHER]),
    "film that is heard": Command("-q use_audio_in_video", "use_audio_in_video", [HEARD]),
    "async chunk": Command(
        f"-q text --txt-prompts {TEN} --num-prompts 12 --max-in-flight 4 --stream-audio-to-disk",
        "text",
        prompts=lines() + lines()[:2],
    ),
    "time limits": Command(
        "--query-type text --modalities text --request-timeout-s 600 --batch-timeout-s 600 --model some/model",
        "text",
        modalities=("text",),
    ),
}


@pytest.mark.parametrize("name", MANUAL)
def test_the_manual(server, tmp_path, name):
    """Must be shown, 1: files, names, counts and the summary; text and audio are the server's answer for the seed."""
    asked = MANUAL[name]
    done = run(server.url, tmp_path, *shlex.split(asked.words), "--seed", SEED, *SMALL)
    assert done.status == 0, done.err
    bodies = asked.bodies()
    assert done.summary["total"] == done.summary["succeeded"] == len(bodies) and done.summary["status"] == 0
    assert f"Total: {len(bodies)}/{len(bodies)} succeeded" in done.out
    results = sorted(done.summary["requests"], key=lambda result: result["index"])
    assert [result["seed"] for result in results] == [body["seed"] for body in bodies]
    found = set()
    answers = _answers(server.url, bodies)
    assert any(answer.text or answer.audio.size for answer in answers), "nothing to compare"
    for result, body, answer in zip(results, bodies, answers, strict=True):
        assert re.fullmatch(rf"req_{result['index']}_[0-9a-f]{{8}}", result["id"])
        found |= _check(done, result, body, answer)
    assert set(done.names) == found, "nothing else is left"
    _check_old_names(name, done)


def _answers(url: str, bodies: list[dict]) -> list:
    async def ask():
        async with OmniClient(url) as client:
            return await asyncio.gather(*(client.ask(body) for body in bodies))

    return asyncio.run(ask())


def _check(done: Run, result: dict, body: dict, answer) -> set[str]:
    """The files of one request, by name."""
    names = set()
    if "text" in body["modalities"]:
        content = body["messages"][0]["content"]
        prompt = content if isinstance(content, str) else content[-1]["text"]
        assert done.text(result["id"]) == f"{prompt}\n\n{answer.text}\n"
        assert not answer.text or 0 < result["first_text_s"] <= result["latency_s"]
        names.add(f"{result['id']}.txt")
    if "audio" in body["modalities"] and answer.audio.size:
        # Answers that are computed beside others may round the other way.
        assert done.samples(result["id"]).shape == answer.audio.shape
        np.testing.assert_allclose(done.samples(result["id"]).astype(int), answer.audio.astype(int), rtol=0, atol=1)
        assert result["audio_s"] == pytest.approx(answer.audio.size / 24000)
        assert 0 < result["first_audio_s"] <= result["latency_s"] and result["chunks"] > 0
        names.add(f"output_{result['id']}.wav")
        with wave.open(str(done.directory / f"output_{result['id']}.wav")) as file:
            assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24000)
    assert {path.rsplit("/", 1)[1] for path in result["files"]} == names
    return names


def _check_old_names(name: str, done: Run) -> None:
    if name == "old names":
        assert "--enable-stats is an old name of --log-stats" in done.err
        assert "--stage-configs-path has no effect here" in done.err
        stages = done.summary["requests"][0]["stats"]["stages"]
        assert set(stages) == {"thinker", "talker", "code2wav"} and '"first_audio"' not in stages
    elif name == "tensor parallel":
        assert "--deploy-config has no effect here" in done.err


def test_the_summary_holds_together(server, tmp_path):
    """RTF is latency over audio, speed is audio over wall time; means and percentiles are those of the requests."""
    done = run(server.url, tmp_path, "-q", "text", "--num-prompts", 3, "--seed", 1, *SMALL)
    facts = done.summary
    requests = facts["requests"]
    spoken = [request for request in requests if request["audio_s"]]
    assert spoken, "the seeds give speech"
    rtf = [request["latency_s"] / request["audio_s"] for request in spoken]
    assert facts["rtf"]["mean"] == pytest.approx(np.mean(rtf))
    assert facts["rtf"]["p95"] == pytest.approx(np.percentile(rtf, 95))
    assert facts["speed"] == pytest.approx(sum(request["audio_s"] for request in requests) / facts["wall_s"])
    latencies = [request["latency_s"] for request in requests]
    assert facts["latency_s"] == pytest.approx(
        {"mean": np.mean(latencies)} | {f"p{p}": np.percentile(latencies, p) for p in (50, 95, 99)}
    )
    for word in ("Real-time factor (latency ÷ audio)", "Speed (audio ÷ wall time)", "TTFT: mean", "TTFA: mean"):
        assert word in done.out


def test_what_the_server_samples_with(server, tmp_path):
    """`--sampling server` sends no parameters but those of the command line: the server's greedy default answers."""
    done = run(server.url, tmp_path, "-q", "text", "--sampling", "server", "--seed", 3, *SMALL)
    body = {"messages": [{"role": "user", "content": QUERIES["text"].question}], "seed": 3, "audio_format": "int16"}
    (answer,) = _answers(
        server.url, [body | {"sampling": {s: {"max_tokens": n} for s, n in (("thinker", 10), ("talker", 12))}}]
    )
    name = done.summary["requests"][0]["id"]
    assert done.text(name).endswith(f"\n\n{answer.text}\n")
    np.testing.assert_allclose(done.samples(name).astype(int), answer.audio.astype(int), rtol=0, atol=1)


def test_audio_is_resampled_when_asked(server, tmp_path):
    """`--sampling-rate` sends mono sound of that rate; the summary's prompt is as long as at 16 kHz."""
    usual = run(server.url, tmp_path, "--log-stats", "--modalities", "text", *SMALL)
    (tmp_path / "again").mkdir()
    words = ("--log-stats", "--modalities", "text", "--sampling-rate", 8000)
    other = run(server.url, tmp_path / "again", *words, *SMALL)
    prompts = [
        done.summary["requests"][0]["stats"]["stages"]["thinker"]["usage"]["prompt_tokens"] for done in (usual, other)
    ]
    assert other.status == 0 and prompts[0] == prompts[1]


def test_the_bundled_files_are_small_and_ours():
    files = [path for path in BUNDLED.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    licence = (BUNDLED / "LICENSE.txt").read_text()
    assert all(path.name in licence for path in files if path.name != "LICENSE.txt") and "CC0 1.0" in licence
    assert len(lines()) == 10
    assert (ROOT / "scripts" / "make_media.py").exists()
