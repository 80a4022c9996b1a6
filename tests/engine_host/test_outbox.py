"""What leaves an engine process: order, batching, and what a dead destination costs the others."""

import threading

import pytest
import zmq

from python_backends.config.errors import StageFailed
from python_backends.connectors.chunk import Chunk
from python_backends.connectors.outbox import Outbox
from python_backends.connectors.zmq_link import ChunkReceiver, ChunkSender
from python_backends.engine_host.streams import Streams


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


class GatedSender:
    """Stands in for a ChunkSender: notes each message; holds each until the gate opens."""

    def __init__(self, error=None):
        self.gate, self.entered = threading.Event(), threading.Event()
        self.messages, self.closed, self.error = [], [], error

    def send(self, address, chunks, given_up):
        self.entered.set()
        while not self.gate.wait(0.01):
            if given_up():
                return False
        if self.error:
            raise self.error
        self.messages.append([chunk.seq for chunk in chunks])
        return True

    def disconnect(self, address):
        self.closed.append(address)


def chunk(stream_id, seq):
    return Chunk(stream_id, "thinker", seq, "text", meta={"text": "a"})


def test_what_gathers_behind_a_send_leaves_as_one_message():
    sender = GatedSender()
    outbox = Outbox(sender, lambda *_: None)
    outbox.put("here", chunk("a", 0))
    assert sender.entered.wait(60)
    for seq in range(1, 6):
        outbox.put("here", chunk("a", seq))
    sender.gate.set()
    outbox.close()
    assert sender.messages == [[0], [1, 2, 3, 4, 5]]


def test_a_full_queue_blocks_the_producer_until_there_is_room():
    sender = GatedSender()
    outbox = Outbox(sender, lambda *_: None, capacity=3)
    outbox.put("here", chunk("a", 0))
    assert sender.entered.wait(60)
    producer = threading.Thread(target=lambda: [outbox.put("here", chunk("a", seq)) for seq in range(1, 6)])
    producer.start()
    producer.join(0.2)
    assert producer.is_alive()
    sender.gate.set()
    producer.join(60)
    outbox.close()
    assert [seq for message in sender.messages for seq in message] == list(range(6))


def test_a_destination_that_takes_nothing_holds_up_no_other_and_is_left_once_unwanted(context, tmp_path):
    receiver, sender = ChunkReceiver(context, f"ipc://{tmp_path}/alive"), ChunkSender(context)
    streams = Streams("talker", sender)
    streams.open("a", receiver.address, f"ipc://{tmp_path}/dead")
    streams.open("b", receiver.address, f"ipc://{tmp_path}/dead")
    assert streams.post("a", "codes", to_sink=True, finished=True)
    assert streams.post("a", "progress", finished=True)
    streams.finish("a")
    assert streams.post("b", "codes", to_sink=True)
    assert receiver.receive(60_000)[0].kind == "progress"
    assert not streams.drop("a") and streams.drop("b")
    streams.open("c", receiver.address, None)
    assert streams.post("c", "progress") and receiver.receive(60_000)[0].stream_id == "c"
    streams.close()
    sender.close()
    receiver.close()


def test_a_stream_whose_chunks_cannot_be_delivered_fails():
    sender, failed, done = GatedSender(StageFailed("no room")), [], threading.Event()
    outbox = Outbox(sender, lambda stream_id, error: (failed.append(stream_id), done.set()))
    sender.gate.set()
    outbox.put("here", chunk("a", 0))
    assert done.wait(60) and failed == ["a"]
    outbox.close()
    assert sender.closed == ["here"]


def test_chunks_of_a_finished_stream_still_travel_and_those_of_a_dropped_one_do_not():
    sender = GatedSender()
    streams = Streams("thinker", sender)
    for stream_id in "xab":
        streams.open(stream_id, "here", None)
    streams.post("x", "text")
    assert sender.entered.wait(60)
    streams.post("a", "text", finished=True)
    streams.finish("a")
    streams.post("b", "text")
    streams.post("b", "text")
    streams.drop("b")
    sender.gate.set()
    streams.close()
    assert sender.messages == [[0], [0]]


def test_a_failed_stream_tells_the_orchestrator_why(context, tmp_path):
    receiver, sender = ChunkReceiver(context, f"ipc://{tmp_path}/in"), ChunkSender(context)
    streams = Streams("talker", sender)
    streams.open("a", receiver.address, None)
    streams.post("a", "progress")
    assert streams.fail("a", StageFailed("why")) and not streams.fail("a", StageFailed("again"))
    chunks = receiver.receive(60_000)
    chunks += [] if len(chunks) == 2 else receiver.receive(60_000)
    assert [(c.seq, c.error) for c in chunks] == [(0, None), (1, ("stage_failed", "why"))]
    streams.close()
    sender.close()
    receiver.close()
