import threading

import numpy as np
import pytest
import zmq

from python_backends.config.errors import ProtocolError, StageFailed
from python_backends.connectors.chunk import Chunk
from python_backends.connectors.zmq_link import ChunkReceiver, ChunkSender


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_chunks_arrive_in_order_with_their_tensors(context, tmp_path, transport):
    address = f"ipc://{tmp_path}/in" if transport == "ipc" else "tcp://127.0.0.1:*"
    receiver, sender = ChunkReceiver(context, address), ChunkSender(context)
    for seq in range(50):
        sender.send(receiver.address, [Chunk("a", "talker", seq, "codes", tensors={"codes": np.full((2, 16), seq)})])
    got = [receiver.receive(60_000)[0] for _ in range(50)]
    assert [chunk.seq for chunk in got] == list(range(50))
    assert all((chunk.tensors["codes"] == chunk.seq).all() for chunk in got)
    sender.close()
    receiver.close()


def test_a_full_queue_blocks_the_sender_until_there_is_room(context, tmp_path):
    receiver = ChunkReceiver(context, f"ipc://{tmp_path}/in", high_water_mark=2)
    sender = ChunkSender(context, high_water_mark=2)
    big, total, sent = np.zeros(200_000, np.float32), 40, []

    def produce():
        for seq in range(total):
            sender.send(receiver.address, [Chunk("a", "talker", seq, "audio", tensors={"audio": big})])
            sent.append(seq)

    thread = threading.Thread(target=produce)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive() and len(sent) < total, "nothing was received, so the queue must be full"
    got = [receiver.receive(60_000)[0].seq for _ in range(total)]
    thread.join(60)
    assert got == list(range(total)) and not thread.is_alive()
    sender.close()
    receiver.close()


def test_a_dead_receiver_holds_nobody_whose_streams_have_ended(context, tmp_path):
    ended = threading.Event()
    sender = ChunkSender(context, timeout_s=30)
    results = []
    thread = threading.Thread(
        target=lambda: results.append(
            sender.send(f"ipc://{tmp_path}/nobody", [Chunk("a", "talker", 0, "codes")], ended.is_set)
        )
    )
    thread.start()
    assert not results
    ended.set()
    thread.join(60)
    assert results == [False]
    sender.close()


def test_a_dead_receiver_is_an_error_after_the_timeout(context, tmp_path):
    sender = ChunkSender(context, timeout_s=0.1)
    with pytest.raises(StageFailed, match="took nothing"):
        sender.send(f"ipc://{tmp_path}/nobody", [Chunk("a", "talker", 0, "codes")])
    sender.close()
    with pytest.raises(StageFailed, match="closed"):
        sender.send(f"ipc://{tmp_path}/nobody", [Chunk("a", "talker", 0, "codes")])


def test_a_malformed_message_is_reported_and_the_next_one_read(context, tmp_path):
    receiver, sender = ChunkReceiver(context, f"ipc://{tmp_path}/in"), ChunkSender(context)
    stranger = context.socket(zmq.PUSH)
    stranger.connect(receiver.address)
    stranger.send(b"\xc1 not a chunk")
    with pytest.raises(ProtocolError):
        receiver.receive(60_000)
    sender.send(receiver.address, [Chunk("a", "talker", 0, "progress")])
    assert receiver.receive(60_000)[0].stream_id == "a"
    stranger.close(0)
    sender.close()
    receiver.close()
