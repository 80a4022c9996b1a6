"""Greedy codes equal those of transformers' own generate, in float32 on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from python_backends.config.sampling import TalkerSampling
from python_backends.config.stage import ChunkSchedule
from python_backends.talker.engine import TalkerEngine
from python_backends.talker.options import TalkerOptions
from python_backends.talker.request import TalkerRequest
from python_backends.talker.rope_index import audio_rows
from tests.talker.oracle import ASSISTANT, SYSTEM, USER, Answer, chat, speak
from tests.talker.sinks import RecordingSink, drain

FRAMES = 7


@pytest.fixture(scope="module")
def answers(oracle_model) -> list[Answer]:
    prompts = [
        (chat((USER, [100])), 1, "Ethan"),
        (chat((USER, list(range(500, 520)))), 2, "Chelsie"),
        (chat((SYSTEM, [40, 41, 42]), (USER, [7, 8]), (ASSISTANT, [9, 10, 11]), (USER, [12])), 4, "Aiden"),
        (chat((USER, [5000, 5001]), (USER, [5002])), 12, "ethan"),
    ]
    return [speak(oracle_model, prompt, text, FRAMES, speaker) for prompt, text, speaker in prompts]


def options(**changes) -> TalkerOptions:
    return TalkerOptions(**{"max_num_seqs": 4, "max_model_len": 128, **changes})


def request(stream_id: str, speaker: str = "ethan", frames: int = FRAMES) -> TalkerRequest:
    sampling = TalkerSampling(temperature=0.0, max_tokens=frames)
    return TalkerRequest(stream_id, speaker, sampling, None, ChunkSchedule(2, 3))


SPEAKERS = ("Ethan", "Chelsie", "Aiden", "ethan")


def test_each_answer_alone(talker_checkpoint, answers):
    sink = RecordingSink()
    engine = TalkerEngine(talker_checkpoint, options(), sink)
    for index, answer in enumerate(answers):
        engine.add(request(str(index), SPEAKERS[index]))
        engine.feed(str(index), answer.chunk)
        drain(engine, sink, [str(index)])
        np.testing.assert_array_equal(sink.of(str(index)).codes, answer.codes[:FRAMES])
    engine.close()


def test_mixed_batches_with_requests_entering_and_leaving(talker_checkpoint, answers):
    sink = RecordingSink()
    engine = TalkerEngine(talker_checkpoint, options(max_num_seqs=3, max_prefill_rows=16), sink)
    limits, opened = {}, []
    for number in range(9):
        index, stream_id = number % len(answers), f"s{number}"
        limits[stream_id] = (index, 1 + (number * 3) % FRAMES)
        engine.add(request(stream_id, SPEAKERS[index], limits[stream_id][1]))
        engine.feed(stream_id, answers[index].chunk)
        opened.append(stream_id)
        engine.step()
    drain(engine, sink, opened)
    for stream_id, (index, frames) in limits.items():
        expected = answers[index].codes[:frames]
        np.testing.assert_array_equal(sink.of(stream_id).codes, expected)
        record = sink.of(stream_id)
        assert record.ends == 1
        assert record.finishes[0].reason == ("length" if len(expected) == frames else "stop")
    assert engine.stats()["open"] == 0
    engine.close()


@pytest.fixture(scope="module")
def media_answers(oracle_model) -> list[tuple[Answer, str]]:
    """Audio alone, an image alone, and a video between an image and an audio."""
    torch.manual_seed(3)
    # transformers reads the audio window from the Talker's config, which does not hold it.
    oracle_model.talker.config.audio_config = oracle_model.config.thinker_config.audio_config
    vision = oracle_model.config.thinker_config.vision_config
    patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    frames = 40
    image, video = [151652, *[151655] * 4, 151653], [151652, *[151656] * 8, 151653]
    audio = [151669, *[151675] * audio_rows(frames, 50), 151670]
    sound = {
        "input_features": torch.randn(1, 128, frames),
        "feature_attention_mask": torch.ones(1, frames, dtype=torch.long),
    }
    picture = {"pixel_values": torch.randn(16, patch), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    film = {
        "pixel_values_videos": torch.randn(32, patch),
        "video_grid_thw": torch.tensor([[2, 4, 4]]),
        "video_second_per_grid": torch.tensor([0.7]),
    }
    cases = [
        (chat((USER, [11, *audio, 12])), sound),
        (chat((USER, [*image, 13, 14])), picture),
        (chat((USER, [15, *image, 16, *video, 17, *audio, 18])), {**sound, **picture, **film}),
    ]
    return [speak(oracle_model, prompt, 3, FRAMES, **inputs) for prompt, inputs in cases]


def test_multimodal_prompts(talker_checkpoint, media_answers):
    sink = RecordingSink()
    engine = TalkerEngine(talker_checkpoint, options(max_prefill_rows=9), sink)
    for index, answer in enumerate(media_answers):
        engine.add(request(str(index)))
        engine.feed(str(index), answer.chunk)
    drain(engine, sink, [str(index) for index in range(len(media_answers))])
    for index, answer in enumerate(media_answers):
        np.testing.assert_array_equal(sink.of(str(index)).codes, answer.codes[:FRAMES])
    engine.close()
