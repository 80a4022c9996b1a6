"""Tensor and pipeline parallelism: worker processes of vLLM's own, hidden rows over a socket, the same answers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from python_backends.thinker.options import ThinkerOptions
from tests.thinker.test_media import MAX_TOKENS, case, check

# Small beside the default: each worker takes its own.
KV_CACHE_BYTES = 1 << 26


@pytest.fixture
def leaves_no_memory(servers, monkeypatch):
    """vLLM's workers on a CPU leave shared memory under the name of a file in TMPDIR, which a supervisor removes."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield
        servers.close()
        names = [file.name for file in Path(directory).glob("vllm_dist_*")]
        assert names
        for name in names:
            for shared in Path("/dev/shm").glob(f"{name}-*"):
                shared.unlink()


@pytest.mark.parametrize("kind", ["tensor", "pipeline"])
def test_two_workers_answer_as_transformers_does(servers, leaves_no_memory, oracle, tiny_checkpoint, kind):
    """Of two tensor-parallel ranks the first sends the rows; of two pipeline stages the one that has the layer."""
    engine_args = {
        f"{kind}_parallel_size": 2,
        "distributed_executor_backend": "mp",
        "kv_cache_memory_bytes": KV_CACHE_BYTES,
        "max_num_batched_tokens": 512,
    }
    options = ThinkerOptions(model=str(tiny_checkpoint), dtype="float32", max_num_seqs=8, engine_args=engine_args)
    server = servers.get(options)
    names = ("two images", "audio", "audio in video", "mixed")
    streams = [(name, server.start(case(name)[0], max_tokens=MAX_TOKENS)) for name in names]
    text = server.answer("Just words.", max_tokens=MAX_TOKENS)
    for name, stream_id in streams:
        check(server.sink.wait(stream_id, 120), oracle.media(case(name)[0], MAX_TOKENS, **case(name)[1]))
    assert text.ids == oracle.text([{"role": "user", "content": "Just words."}], MAX_TOKENS).ids
    assert text.multimodal is None
