import msgspec
import numpy as np
import pytest

from python_backends.config.errors import ProtocolError
from python_backends.connectors import wire


def test_large_arrays_travel_as_frames_of_their_own_and_are_not_copied():
    picture = np.arange(60_000, dtype=np.uint8).reshape(100, 200, 3)
    message = {"id": 3, "payload": {"streams": [{"media": {"IMAGE": picture, "N": np.array([[1, 2, 3]])}}, {}]}}
    frames = wire.pack(message)
    assert len(frames) == 3 and len(frames[0]) < 200, "the small array lies in the first frame of arrays"
    assert np.shares_memory(np.frombuffer(frames[2], np.uint8), picture)
    got = wire.unpack(frames)
    media = got["payload"]["streams"][0].pop("media")
    assert got == {"id": 3, "payload": {"streams": [{}, {}]}}
    np.testing.assert_array_equal(media["IMAGE"], picture)
    assert media["N"].dtype == np.int64 and media["N"].tolist() == [[1, 2, 3]]
    assert np.shares_memory(media["IMAGE"], picture)


def test_what_is_not_contiguous_and_what_is_empty_comes_back():
    message = {"turned": np.arange(6, dtype=np.float32).reshape(2, 3).T, "empty": np.empty((0, 3), np.uint8)}
    got = wire.unpack([bytes(frame) for frame in wire.pack(message)])
    assert got["turned"].tolist() == message["turned"].tolist() and got["empty"].shape == (0, 3)


def test_what_cannot_travel_is_refused():
    with pytest.raises(ValueError, match="complex64"):
        wire.pack({"a": np.zeros(2, np.complex64)})
    with pytest.raises(TypeError, match="object"):
        wire.pack({"a": object()})


FRAMES = wire.pack({"a": np.arange(4)})


def array(*spec):
    return msgspec.msgpack.encode({"a": msgspec.msgpack.Ext(1, msgspec.msgpack.encode(spec))})


@pytest.mark.parametrize(
    "frames",
    [
        FRAMES[:1],
        [FRAMES[0], FRAMES[1][:-1]],
        [FRAMES[0][:-2], FRAMES[1]],
        [*FRAMES, b"stray"],
        [msgspec.msgpack.encode([1]), b""],
        [msgspec.msgpack.encode({"a": msgspec.msgpack.Ext(7, b"")}), b""],
        [array("object", [1], 0, 0), b"12345678"],
        [array("int32", [2], 0, -8), b"12345678"],
    ],
    ids=["frame missing", "frame cut", "head cut", "stray", "no mapping", "unknown extension", "dtype", "offset"],
)
def test_a_malformed_message_is_a_protocol_error(frames):
    with pytest.raises(ProtocolError, match="malformed message"):
        wire.unpack(frames)
