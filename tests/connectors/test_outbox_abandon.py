"""Destinations that are gone: what waited for them, their threads, and what comes after."""

import threading

import pytest
import zmq

from python_backends.connectors.chunk import Chunk
from python_backends.connectors.outbox import Outbox
from python_backends.connectors.zmq_link import ChunkReceiver, ChunkSender
from tests.server import wait_until


@pytest.fixture
def outbox():
    context = zmq.Context()
    sender, failed = ChunkSender(context, timeout_s=300), []
    outbox = Outbox(sender, lambda stream_id, error: failed.append(stream_id))
    outbox.context, outbox.failed = context, failed
    yield outbox
    outbox.close()
    sender.close()
    context.destroy(linger=0)


def abort(stream_id):
    return Chunk(stream_id, "orchestrator", 0, "abort", True)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "outbox"]


def test_an_abandoned_destination_costs_nothing_and_another_of_its_name_is_served(outbox, tmp_path):
    gone = f"ipc://{tmp_path}/gone"
    outbox.put(gone, abort("a"))
    wait_until(lambda: len(threads()) == 1, 2, "a thread for the destination")
    outbox.put(gone, abort("b"))
    outbox.abandon(gone)
    wait_until(lambda: not threads(), 2, "its thread has ended long before the sender's timeout")
    receiver = ChunkReceiver(outbox.context, gone)
    outbox.put(gone, abort("c"))
    assert [chunk.stream_id for chunk in receiver.receive(60_000)] == ["c"]
    receiver.close()


def test_abandoning_who_was_never_written_to_or_has_taken_all_is_no_fault(outbox, tmp_path):
    receiver = ChunkReceiver(outbox.context, f"ipc://{tmp_path}/here")
    outbox.abandon(receiver.address)
    outbox.put(receiver.address, abort("a"))
    assert receiver.receive(60_000)
    outbox.abandon(receiver.address)
    wait_until(lambda: not threads(), 2, "its thread has ended")
    assert not outbox.failed
    receiver.close()
