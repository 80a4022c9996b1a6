"""Every combination of the switches gives the same codes and samples, with engines as the deploy configuration asks."""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from python_backends.code2wav.engine import Code2WavEngine
from python_backends.code2wav.options import Code2WavOptions, Code2WavRequest
from python_backends.config.deploy import load_deploy_config
from python_backends.config.sampling import TalkerSampling
from python_backends.engines_common.transfer import HostTransfer
from python_backends.talker.engine import TalkerEngine
from python_backends.talker.options import TalkerOptions
from python_backends.talker.request import TalkerRequest, TextChunk
from tests.cpu import products_round_alike
from tests.talker.oracle import USER, chat

SMALL = [
    "stages.1.max_num_seqs=4",
    "stages.1.max_model_len=128",
    "stages.2.max_num_seqs=4",
    f"stages.2.batch_invariant={'false' if products_round_alike() else 'true'}",
    "connectors.data_plane.extra={initial_codec_chunk_frames: 2, codec_chunk_frames: 5}",
]
SWITCHES = ("cuda_graphs", "async_chunk", "async_output", "stages.1.replicas")
COMBINATIONS = list(itertools.product((True, False), (True, False), (True, False), (1, 2)))
TEXTS = {"a": list(range(100, 112)), "b": list(range(200, 204)), "c": [300]}
FRAMES, GROUPS = 14, 16


@dataclass
class Speech:
    """What one stream became."""

    codes: list[np.ndarray] = field(default_factory=list)
    samples: list[np.ndarray] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def digest(self) -> str:
        parts = (np.concatenate(self.codes), np.concatenate(self.samples))
        return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


class Pipeline:
    """Talker and Code2Wav engines of a deploy configuration in this process, the least loaded first."""

    def __init__(self, checkpoint, config) -> None:
        self.config, self.speech = config, {}
        options = [TalkerOptions(**replica.options) for replica in config.replicas["talker"]]
        # A transfer of the caller stands in for pinned memory, so that asynchronous output runs on the CPU.
        self.talkers = [
            TalkerEngine(checkpoint, one, self, HostTransfer(one.max_steps_in_flight, one.max_num_seqs, GROUPS))
            for one in options
        ]
        replica = config.replicas["code2wav"][0]
        self.decoder = Code2WavEngine(checkpoint, Code2WavOptions(**replica.options), self)

    def speak(self, texts: dict[str, list[int]]) -> dict[str, str]:
        """Speak all texts at once; a digest of the codes and samples of each."""
        held = self.config.schedule.steady == 0
        for number, (name, ids) in enumerate(texts.items()):
            talker = self.talkers[number % len(self.talkers)]
            self.speech[name] = Speech()
            self.decoder.add(Code2WavRequest(name))
            sampling = TalkerSampling(max_tokens=FRAMES, ignore_eos=True)
            talker.add(TalkerRequest(name, "ethan", sampling, 7, self.config.schedule))
            prompt = np.array(chat((USER, [10, 11])), np.int32)
            pieces = [ids] if held else [[one] for one in ids]
            for at, piece in enumerate(pieces):
                first, last = at == 0, at == len(pieces) - 1
                talker.feed(name, TextChunk(np.array(piece, np.int32), last, prompt if first else None))
                talker.step()
        deadline = time.monotonic() + 120
        while not all(speech.done.is_set() for speech in self.speech.values()):
            assert time.monotonic() < deadline
            if not any([engine.step() for engine in (*self.talkers, self.decoder)]):
                self.decoder.wait_for_work(0.005)
        return {name: speech.digest for name, speech in self.speech.items()}

    def codes(self, stream_id, codes, finish) -> None:
        self.speech[stream_id].codes.append(codes.copy())
        self.decoder.feed(stream_id, codes, finish is not None)

    def audio(self, stream_id, samples, finish) -> None:
        self.speech[stream_id].samples.append(samples.copy())
        if finish is not None:
            self.speech[stream_id].done.set()

    def failed(self, stream_id, error) -> None:
        raise error

    def close(self) -> None:
        for engine in (*self.talkers, self.decoder):
            engine.close()


def settings_of(combination) -> list[str]:
    return [f"{name}={str(value).lower()}" for name, value in zip(SWITCHES, combination, strict=True)]


@pytest.fixture(scope="module")
def expected(tiny_checkpoint):
    """Digests with every switch on."""
    return spoken(tiny_checkpoint, COMBINATIONS[0])


def spoken(checkpoint, combination) -> dict[str, str]:
    pipeline = Pipeline(checkpoint, load_deploy_config("cpu", SMALL + settings_of(combination)))
    try:
        assert (pipeline.talkers[0].synchronous_because is None) == (combination[1] and combination[2])
        digests = pipeline.speak(TEXTS)
        chunks = [len(part) for part in pipeline.speech["a"].codes]
        assert chunks == ([2, 5, 5, 2] if combination[1] else [FRAMES])
        return digests
    finally:
        pipeline.close()


@pytest.mark.parametrize("combination", COMBINATIONS[1:], ids=lambda c: ",".join(settings_of(c)))
def test_every_combination_gives_the_same_codes_and_samples(tiny_checkpoint, expected, combination):
    assert len(set(expected.values())) == len(TEXTS)
    assert spoken(tiny_checkpoint, combination) == expected


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["async_output=false"], "async_output is off"),
        (["async_chunk=false"], "async_chunk is off"),
        (["stages.1.async_scheduling=false"], "async_scheduling is off"),
        ([], "cpu has no asynchronous copies into pinned memory"),
    ],
)
def test_asynchronous_output_falls_back_and_says_why(tiny_checkpoint, settings, reason):
    options = load_deploy_config("cpu", SMALL + settings).replicas["talker"][0].options
    engine = TalkerEngine(tiny_checkpoint, TalkerOptions(**options), Pipeline)
    assert reason in engine.synchronous_because
    engine.close()
