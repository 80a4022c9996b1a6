"""OpenAI's API by OpenAI's own package and the benchmark's driver: what comes is what the contract gives."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import subprocess
import sys
import urllib.request

import av
import numpy as np
import pytest

from client.audio_formats import CODECS, FORMATS
from client.chat import chat
from client.media import file_part
from client.queries import BUNDLED
from client.streaming import OmniClient
from client.sync import SyncOmniClient
from scripts.benchmarks.drivers import openai as driver
from scripts.benchmarks.workload import tasks
from tests.server import PATIENT_S, ROOT

SAMPLING = {"thinker": {"max_tokens": 6}, "talker": {"max_tokens": 9, "ignore_eos": True}}
HELLO = [{"role": "user", "content": "Hello!"}]
SPOKEN = {"model": "qwen3_omni", "modalities": ["text", "audio"], "seed": 5}


@pytest.fixture(scope="module")
def expected(server):
    """What the contract answers, by its request."""
    with SyncOmniClient(server.url) as client:
        known = {}

        def ask(messages=HELLO, **fields):
            fields = {"seed": 5, "sampling": SAMPLING, "audio_format": "int16"} | fields
            request = chat(messages, **fields)
            key = json.dumps(request)
            if key not in known:
                known[key] = client.ask(request, deadline_s=PATIENT_S)
            return known[key]

        yield ask


def create(front, messages=HELLO, audio_format="pcm16", extra=None, **fields):
    fields = SPOKEN | {"audio": {"voice": "Ethan", "format": audio_format}} | fields
    extra = {"sampling": SAMPLING} | (extra or {})
    return front.client().chat.completions.create(messages=messages, extra_body=extra, **fields)


def read(stream):
    """Transcript, text, audio bytes and chunks of a stream in OpenAI's shape."""
    chunks = list(stream)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    spoken = [delta.audio for delta in deltas if delta.audio is not None]
    data = b"".join(base64.b64decode(audio.data) for audio in spoken if audio.data)
    text = "".join(delta.content or "" for delta in deltas)
    return "".join(audio.transcript or "" for audio in spoken), text, data, chunks


def pcm(data):
    return np.frombuffer(data, "<i2")


def decoded(data, audio_format):
    """Samples at 24 kHz and at the file's own rate, float32; `data` may be of unknown length."""
    if audio_format in ("pcm", "pcm16"):
        return pcm(data).astype(np.float32) / 32768
    with av.open(io.BytesIO(data)) as container:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=24_000)
        frames = [piece for frame in container.decode(audio=0) for piece in resampler.resample(frame)]
        frames += resampler.resample(None)
        return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def usage_of(answer):
    stages = answer.summary["stages"]
    return stages["thinker"]["usage"]["prompt_tokens"], stages["thinker"]["usage"]["completion_tokens"]


def test_a_whole_answer_has_text_and_audio(front, expected):
    """Not streamed: content, audio with transcript, usage with audio tokens, finish_reason; samples bit for bit."""
    answer, completion = expected(), create(front)
    (choice,) = completion.choices
    assert choice.message.content == choice.message.audio.transcript == answer.text != ""
    assert np.array_equal(pcm(base64.b64decode(choice.message.audio.data)), answer.audio) and answer.audio.size
    assert choice.message.audio.expires_at > completion.created
    assert choice.finish_reason == answer.summary["finish_reason"] == "length"
    prompt, text = usage_of(answer)
    assert completion.usage.prompt_tokens == prompt and completion.usage.completion_tokens_details.text_tokens == text
    assert completion.usage.completion_tokens_details.audio_tokens == 9
    assert completion.usage.total_tokens == prompt + text + 9 and completion.model == "qwen3_omni"


def test_a_stream_has_openais_shape(front, expected):
    """Streamed, default: role, transcripts and data under one id, expiry, finish, usage, in that order."""
    answer = expected()
    transcript, text, data, chunks = read(create(front, stream=True, stream_options={"include_usage": True}))
    assert transcript == answer.text and not text and np.array_equal(pcm(data), answer.audio)
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.audio is None
    spoken = [chunk.choices[0].delta.audio for chunk in chunks[1:-2]]
    assert len({audio.id for audio in spoken}) == 1 and len({chunk.id for chunk in chunks}) == 1
    assert spoken[-1].expires_at and not any(audio.expires_at for audio in spoken[:-1])
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens_details.audio_tokens == 9
    assert not any(chunk.usage for chunk in chunks[:-1])
    assert not any(chunk.usage for chunk in read(create(front, stream=True))[3])


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("audio_format", FORMATS)
def test_every_format_decodes(front, expected, audio_format, streamed):
    """Each format by PyAV: as many samples as the contract gives, to within a codec frame behind the codec's delay."""
    samples = expected().audio.astype(np.float32) / 32768
    answer = create(front, audio_format=audio_format, stream=streamed)
    data = read(answer)[2] if streamed else base64.b64decode(answer.choices[0].message.audio.data)
    found = decoded(data, audio_format)
    if audio_format in ("wav", "pcm", "pcm16", "flac"):
        assert np.array_equal(found, samples)
        return
    delay = CODECS[audio_format].delay if streamed or audio_format == "aac" else 0
    # LAME flushes what its filters hold with a frame of its own; the end of a stream cannot say how much that is.
    frame = {"mp3": 2 * 576 if streamed else 576, "opus": 480, "aac": 1024}[audio_format]
    assert 0 <= found.size - delay - samples.size <= frame
    # It is this speech, in its place.
    found = found[delay:][: samples.size]
    assert np.corrcoef(found, samples)[0, 1] > 0.5


def test_text_alone_touches_no_audio(front, expected):
    """Default modalities without `audio`: text, in `delta.content`."""
    answer = expected(modalities=["text"])
    body = {"model": "qwen3_omni", "messages": HELLO, "seed": 5, "max_completion_tokens": 6}
    completion = front.client().chat.completions.create(**body)
    assert completion.choices[0].message.content == answer.text and completion.choices[0].message.audio is None
    assert completion.usage.completion_tokens_details.audio_tokens == 0
    transcript, text, data, _ = read(front.client().chat.completions.create(**body, stream=True))
    assert (transcript, text, data) == ("", answer.text, b"")


def test_audio_alone_has_no_content_but_a_transcript(front, expected):
    message = create(front, modalities=["audio"]).choices[0].message
    assert message.content is None and message.audio.transcript == expected().text


def test_sampling_reaches_its_stage(front, expected):
    """OpenAI's fields, one list a stage, ours: the later counts."""
    fields = {"temperature": 0.7, "top_p": 0.8, "stop": ["zzz"], "max_tokens": 5, "frequency_penalty": 0.5}
    listed = [{"max_tokens": 6, "top_k": 9}, {"max_tokens": 3}, {"temperature": 0}]
    extra = {"repetition_penalty": 1.1, "sampling_params_list": listed, "sampling": {"talker": SAMPLING["talker"]}}
    thinker = fields | {"max_tokens": 6, "top_k": 9, "repetition_penalty": 1.1}
    answer = expected(sampling={"thinker": thinker, "talker": SAMPLING["talker"]})
    message = create(front, extra=extra, **fields).choices[0].message
    assert message.content == answer.text
    assert np.array_equal(pcm(base64.b64decode(message.audio.data)), answer.audio)


def test_audio_image_and_video_go_in(front, expected):
    """Parts input_audio, image_url, audio_url, video_url; `mm_processor_kwargs` is for all videos."""
    audio = BUNDLED / "greeting.wav"
    url = f"data:audio/wav;base64,{base64.b64encode(audio.read_bytes()).decode()}"
    parts = [
        file_part("audio", audio),
        {"type": "audio_url", "audio_url": {"url": url}},
        file_part("image", BUNDLED / "hill.png"),
        file_part("video", BUNDLED / "ball.mp4", num_frames=4),
        {"type": "text", "text": "What is this?"},
    ]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    answer = expected(messages, modalities=["text"])
    parts[3] = file_part("video", BUNDLED / "ball.mp4")
    extra = {"mm_processor_kwargs": {"num_frames": 4}}
    completion = create(front, messages, extra=extra, modalities=["text"])
    assert completion.choices[0].message.content == answer.text
    assert completion.usage.prompt_tokens == usage_of(answer)[0] > 100


def test_several_turns(front, expected):
    """An answer goes back as the package gives it, or by the id of its audio; both are its text."""
    message = create(front).choices[0].message
    more = {"role": "user", "content": "And then?"}
    answer = expected([*HELLO, {"role": "assistant", "content": message.content}, more], modalities=["text"])
    for earlier in (
        {"role": "assistant", "audio": {"id": message.audio.id}},
        {"role": "assistant", "content": message.content, "refusal": None, "tool_calls": None},
        message.model_dump(),
    ):
        completion = create(front, [*HELLO, earlier, more], modalities=["text"])
        assert completion.choices[0].message.content == answer.text
        assert completion.usage.prompt_tokens == usage_of(answer)[0]


def events(front, **fields):
    body = SPOKEN | {"messages": HELLO, "stream": True, "sampling": SAMPLING} | fields
    request = urllib.request.Request(
        f"{front.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENT_S) as answer:
        lines = [line[6:] for line in answer.read().decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("audio_format", ["wav", "flac"])
def test_a_stream_in_vllm_omnis_shape(front, expected, audio_format):
    """`audio_delta: content`: base64 in `delta.content`, `modality`, `audio_metadata`; each piece a complete file."""
    answer = expected()
    found = events(front, audio_delta="content", audio={"format": audio_format})
    text = "".join(one["choices"][0]["delta"]["content"] for one in found if one.get("modality") == "text")
    pieces, sizes = [], []
    for one in found:
        if one.get("modality") == "audio":
            pieces.append(decoded(base64.b64decode(one["choices"][0]["delta"]["content"]), audio_format))
            facts = one["audio_metadata"]
            sizes.append(facts.pop("frame_count"))
            assert facts == {"format": audio_format, "sample_rate_hz": 24_000, "channels": 1}
    assert text == answer.text and sizes == [piece.size for piece in pieces]
    assert np.array_equal(np.concatenate(pieces), answer.audio.astype(np.float32) / 32768)
    assert found[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("shape", ["audio", "content"])
def test_the_benchmarks_driver_reads_both_shapes(front, shape):
    """The driver for vLLM-Omni's servers, with its way of forcing lengths."""
    wanted = tasks(3, scale=0.1)
    asked = driver.OpenAiServer(front.url, "qwen3_omni", driver.vllm_omni_lengths() | {"audio_delta": shape})
    records = driver.run(asked, wanted, 1)
    assert [record.failure for record in records] == [None] * 3
    for record, task in zip(records, wanted, strict=True):
        assert abs(record.audio_s - task.audio_s) <= 0.08
    assert shape == "audio" or all(record.first_text is not None for record in records)


@pytest.mark.parametrize(("document", "files"), [("README.md", []), ("docs/openai.md", ["hello.wav"])])
def test_the_documents_example_runs(front, document, files, tmp_path):
    (block,) = re.findall(
        r"```python\n([^`]*from openai [^`]*)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL
    )
    program = block.replace("http://127.0.0.1:8091", front.url)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    speech = list(tmp_path.iterdir())
    assert [file.name for file in speech] == files
    assert all(decoded(file.read_bytes(), file.suffix[1:]).size for file in speech)


def test_what_is_there(front, server):
    """Models, voices as the server describes them, health of all stages, metrics of the process, the schema."""

    async def describe():
        async with OmniClient(server.url) as client:
            return await client.describe()

    client = front.client()
    assert [model.id for model in client.models.list()] == ["qwen3_omni"]
    assert client.models.retrieve("qwen3_omni").object == "model"
    voices = json.loads(front.get("/v1/audio/voices"))
    assert voices == {"voices": asyncio.run(describe())["voices"], "uploaded_voices": []} and voices["voices"]
    assert json.loads(front.get("/health")) == {"status": "ok"}
    create(front)
    metrics = front.get("/metrics")
    assert 'omni_openai_answers_total{outcome="length"}' in metrics and "process_open_fds" in metrics
    assert "/v1/chat/completions" in json.loads(front.get("/openapi.json"))["paths"]
