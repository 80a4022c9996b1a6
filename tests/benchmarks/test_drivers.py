"""What the drivers read: perf_analyzer's export, and the events of OpenAI-compatible servers."""

import asyncio
import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from scripts.benchmarks.drivers import openai, perf_analyzer
from scripts.benchmarks.records import Record
from scripts.benchmarks.workload import request_body, task, tasks


def export(responses):
    """An export of one request as perf_analyzer writes it: outputs that a response lacks hold one stray number."""
    stray = {"summary": "", "text": "", "audio_int16": 2064, "audio": -1.3e29}
    request = {
        "timestamp": 1_000_000_000,
        "request_inputs": {"request": json.dumps(request_body(task(0)))},
        "response_timestamps": [1_000_000_000 + 10_000_000 * (at + 1) for at in range(len(responses))],
        "response_outputs": [stray | response for response in responses],
    }
    body = {"experiments": [{"experiment": {"mode": "concurrency", "value": 1}, "requests": [request]}]}
    return json.dumps(body, separators=(",", ":"))


def test_an_export_becomes_records(tmp_path):
    path = tmp_path / "export.json"
    half = [0] * (96 * 960)
    responses = [{"text": 'Hi "audio":[1,2]'}, {"audio_int16": half}, {"text": "!", "audio_int16": half}]
    path.write_text(export([*responses, {"summary": json.dumps({"id": "abc"})}]))
    (record,) = perf_analyzer.read_export(path)
    assert record.failure is None and record.summary == {"id": "abc"}
    assert record.audio_s == pytest.approx(96 * 0.08)
    metrics = record.metrics()
    assert metrics["ttft_ms"] == pytest.approx(10) and metrics["ttfp_ms"] == pytest.approx(20)
    assert metrics["latency_ms"] == pytest.approx(40)


def test_a_request_without_summary_is_a_failure(tmp_path):
    path = tmp_path / "export.json"
    path.write_text(export([{"text": "Hi"}]))
    assert perf_analyzer.read_export(path)[0].failure == "no end"


def test_both_ways_of_streaming_audio_are_read():
    record = Record(0.0)
    sound = base64.b64encode(np.zeros(2400, np.int16).tobytes()).decode()
    wav = base64.b64encode(b"RIFF" + bytes(40) + np.zeros(1200, np.int16).tobytes()).decode()
    openai.read_event(record, {"choices": [{"delta": {"role": "assistant", "content": ""}}]}, 0.5)
    openai.read_event(record, {"choices": [{"delta": {"content": "Hi"}}]}, 1.0)
    openai.read_event(record, {"choices": [{"delta": {"audio": {"data": sound}}}]}, 2.0)
    openai.read_event(record, {"modality": "audio", "choices": [{"delta": {"content": wav}}]}, 3.0)
    assert record.first_text == 1.0 and record.audio == [(2.0, 0.1), (3.0, 0.05)]


def test_lengths_are_filled_into_whatever_the_server_wants():
    server = openai.OpenAiServer("http://x", "m", openai.vllm_omni_lengths())
    body = openai.body(server, task(0))
    assert [stage["max_tokens"] for stage in body["sampling_params_list"]] == [30, 96, 65536]
    assert body["stream"] and body["modalities"] == ["text", "audio"]


class PlayedServer(BaseHTTPRequestHandler):
    """Answers every other request with text and audio, the rest with an error."""

    seen: list = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(body)
        if body["seed"] % 2:
            self.send_error(503, "full")
            return
        self.send_response(200)
        self.end_headers()
        sound = base64.b64encode(bytes(200_000)).decode()
        for delta in ({"content": "Hi"}, {"audio": {"data": sound}}):
            self.wfile.write(b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *args):
        pass


def test_another_server_is_measured():
    server = ThreadingHTTPServer(("127.0.0.1", 0), PlayedServer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        target = openai.OpenAiServer(f"http://127.0.0.1:{server.server_port}", "m", {})
        records = asyncio.run(openai._run(target, tasks(4), 2))
    finally:
        server.shutdown()
        thread.join(60)
    served = [record for record in records if record.failure is None]
    assert len(served) == 2 and all(record.audio_s == pytest.approx(200_000 / 48_000) for record in served)
    assert all("503" in record.failure for record in records if record not in served)
