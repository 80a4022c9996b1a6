import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backends.config.errors import ProtocolError
from python_backends.connectors.chunk import KINDS, Chunk, SequenceChecker, decode, encode
from python_backends.connectors.wire import DTYPES

arrays = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 16), min_size=1, max_size=3)).map(
    lambda spec: np.arange(np.prod(spec[1]), dtype=spec[0]).reshape(spec[1])
)
chunks = st.builds(
    Chunk,
    stream_id=st.text(min_size=1, max_size=8),
    source=st.sampled_from(["thinker", "talker"]),
    seq=st.integers(0, 2**40),
    kind=st.sampled_from(KINDS),
    finished=st.booleans(),
    error=st.one_of(st.none(), st.tuples(st.text(max_size=5), st.text(max_size=5))),
    meta=st.dictionaries(st.text(max_size=4), st.integers(-5, 5), max_size=2),
    tensors=st.dictionaries(st.text(max_size=4), arrays, max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(chunks, max_size=4))
def test_what_is_encoded_comes_back(sent):
    frames = [bytes(frame) for frame in encode(sent)]
    got = decode(frames)
    assert len(got) == len(sent)
    for a, b in zip(sent, got, strict=True):
        assert (a.stream_id, a.source, a.seq, a.kind, a.finished, a.error, a.meta) == (
            b.stream_id, b.source, b.seq, b.kind, b.finished, b.error, b.meta,
        )  # fmt: skip
        assert a.tensors.keys() == b.tensors.keys()
        for name in a.tensors:
            np.testing.assert_array_equal(a.tensors[name], b.tensors[name])
            assert a.tensors[name].dtype == b.tensors[name].dtype


def test_a_transposed_tensor_keeps_its_values():
    codes = np.arange(48, dtype=np.int32).reshape(16, 3).T
    (chunk,) = decode([bytes(f) for f in encode([Chunk("a", "talker", 0, "codes", tensors={"codes": codes})])])
    np.testing.assert_array_equal(chunk.tensors["codes"], codes)


def header(*fields):
    return msgspec.msgpack.encode([fields])


def array(*spec):
    return msgspec.msgpack.Ext(1, msgspec.msgpack.encode(spec))


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"\xc1"],
        [b""],
        [msgspec.msgpack.encode({"id": "a"}), b""],
        [msgspec.msgpack.encode([{"id": "a"}]), b""],
        [msgspec.msgpack.encode([])],
        [msgspec.msgpack.encode([]), b"", b"stray"],
        [header("a", "t", 0, "noise", False, None, {}, {}), b""],
        [header("a", "t", "0", "codes", False, None, {}, {}), b""],
        [header("a", "t", 0, "codes", False, None, {}, {"codes": [1, 2]}), b""],
        [header("a", "t", 0, "codes", False, None, {}, {"codes": array("object", [1], 0, 0)}), b"12345678"],
        [header("a", "t", 0, "codes", False, None, {}, {"codes": array("int32", [4], 0, 0)}), b"123"],
        [header("a", "t", 0, "codes", False, None, {}, {"codes": array("int32", [1], 1, 0)}), b"1234"],
        [header("a", "t", 0, "codes", False, None, {}, {"codes": msgspec.msgpack.Ext(7, b"")}), b"1234"],
    ],
)  # fmt: skip
def test_a_malformed_message_is_a_protocol_error(frames):
    with pytest.raises(ProtocolError):
        decode(frames)


def test_an_unknown_kind_or_dtype_is_refused_at_the_sender():
    with pytest.raises(ValueError, match="kind"):
        encode([Chunk("a", "talker", 0, "noise")])
    with pytest.raises(ValueError, match="dtype"):
        encode([Chunk("a", "talker", 0, "codes", tensors={"x": np.array(["s"])})])


def test_gaps_and_repeats_are_found_for_each_source_alone():
    checker = SequenceChecker()
    checker.check(Chunk("a", "thinker", 0, "text"))
    checker.check(Chunk("a", "talker", 0, "progress"))
    checker.check(Chunk("a", "thinker", 1, "text"))
    with pytest.raises(ProtocolError, match="repeated"):
        checker.check(Chunk("a", "thinker", 1, "text"))
    with pytest.raises(ProtocolError, match="missing"):
        checker.check(Chunk("a", "thinker", 3, "text"))
    checker.forget("a", ["thinker"])
    checker.check(Chunk("a", "thinker", 0, "text"))
