"""Files that are not what they say: a clear error on the item's field within two seconds, in bounded memory."""

from __future__ import annotations

import base64
import struct
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.engine import MediaOptions, MediaTensors
from python_backends.thinker.media.loader import check_refs, load
from python_backends.thinker.media.refs import MediaRef
from python_backends.thinker.messages import PromptRules, parse_messages
from tests.thinker import samples

OPTIONS = MediaOptions()
POSITIONS = 13
SECONDS = 2.0


def long_silence(hours: int) -> bytes:
    """FLAC whose header, as that of a whole file would, tells its samples: 36 bits from byte 21 on."""
    body = bytearray(samples.wav(np.zeros(16000, dtype=np.float32), kind="FLAC", subtype="PCM_16"))
    count = hours * 3600 * 16000
    body[21] = body[21] & 0xF0 | count >> 32
    body[22:26] = struct.pack(">I", count & 0xFFFFFFFF)
    return bytes(body)


def odd_rate(rate: int) -> bytes:
    """WAV whose header tells a rate that no sound has. One that is prime keeps the ratio of the rates from reducing."""
    body = samples.wav(np.zeros(16000, dtype=np.float32), subtype="PCM_16")
    return body[:24] + struct.pack("<II", rate, 2 * rate & 0xFFFFFFFF) + body[32:]


def headerless_silence(seconds: int) -> bytes:
    """WAV whose header says it has no end: the length shows only while it is read."""
    body = samples.wav(np.zeros(16000 * seconds, dtype=np.float32), subtype="PCM_16")
    return body[:4] + b"\xff\xff\xff\xff" + body[8:40] + b"\xff\xff\xff\xff" + body[44:]


def png_bomb(side: int) -> bytes:
    """A picture of one colour: some kilobytes that decode to gigabytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(b"\0" * 3 * side) for _ in range(64)) + packer.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def text_bomb() -> bytes:
    """A small picture with a comment that decompresses to 200 MB."""
    body = samples.png(samples.picture())
    comment = b"Comment\0\0" + zlib.compress(b"\0" * (200 << 20), 9)
    chunk = struct.pack(">I", len(comment)) + b"zTXt" + comment + struct.pack(">I", zlib.crc32(b"zTXt" + comment))
    return body[:33] + chunk + body[33:]


WAV = samples.wav(samples.tone())
PNG = samples.png(samples.picture())
MP4 = samples.film()
PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
CONCAT = b"ffconcat version 1.0\nfile /etc/passwd\n"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n"


BAD_FILES = [
    ("audio", "empty", lambda: b"", "is empty"),
    ("audio", "text", lambda: b"This is not a sound." * 40, "not audio"),
    ("audio", "cut header", lambda: WAV[:20], "not audio"),
    ("audio", "10 hours", lambda: long_silence(10), "longer than 1200 s"),
    ("audio", "no end", lambda: headerless_silence(1300), "longer than 1200 s"),
    ("audio", "hundred million Hz", lambda: odd_rate(99_999_989), "must have a rate from 1000 to 384000 Hz"),
    ("audio", "one Hz", lambda: odd_rate(1), "must have a rate from 1000 to 384000 Hz|longer than 1200 s"),
    ("audio", "playlist", lambda: PLAYLIST, "not audio"),
    ("audio", "picture", lambda: PNG, "no sound track|not audio"),
    ("audio", "not finite", lambda: samples.wav(np.full(16000, np.nan, dtype=np.float32)), "not finite"),
    ("image", "empty", lambda: b"", "is empty"),
    ("image", "text named png", lambda: b"hello, I am a picture", "not an image"),
    ("image", "cut", lambda: PNG[: len(PNG) // 2], "not an image"),
    ("image", "pixel bomb", lambda: png_bomb(30000), "more than 50000000"),
    ("image", "text bomb", text_bomb, "not an image"),
    ("image", "one line", lambda: samples.png(samples.picture(4000, 3)), "too thin"),
    ("image", "vector", lambda: SVG, "not an image"),
    ("image", "postscript", lambda: EPS, "not an image"),
    ("video", "empty", lambda: b"", "is empty"),
    ("video", "text", lambda: b"moov" * 100, "not video"),
    ("video", "cut", lambda: MP4[: len(MP4) // 3], "not video|damaged|holds no frame"),
    ("video", "playlist", lambda: PLAYLIST, "not video"),
    ("video", "concat", lambda: CONCAT, "not video"),
    ("video", "sound only", lambda: WAV, "no video stream"),
]


@pytest.mark.parametrize(
    ("kind", "name", "make", "reason"), BAD_FILES, ids=[f"{kind} {name}" for kind, name, *_ in BAD_FILES]
)
def test_bad_file(kind, name, make, reason):
    data = make()
    field = f"messages[0].content[0].{kind}"
    ref = MediaRef(kind, field, source=samples.data_url(data))
    # Of this thread: on a busy machine others run between.
    started = time.thread_time()
    with pytest.raises(InvalidRequest, match=reason) as error:
        load([ref], MediaTensors(), OPTIONS, POSITIONS)
    assert time.thread_time() - started < SECONDS
    assert error.value.field == field


@pytest.mark.parametrize(
    ("kind", "taken"),
    [("audio", "WAV, FLAC, MP3"), ("image", "PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF and HEIC"), ("video", "MP4, MOV")],
)
def test_media_errors_name_what_is_taken(kind, taken):
    """And no object, address or path of this process."""
    wav, flac = samples.wav(samples.tone()), samples.wav(samples.tone(), kind="FLAC")
    cut = wav[:30], flac[:200], samples.film()[:900], samples.png(samples.corners())[:90]
    for data in (b"nothing of the kind" * 9, *cut):
        with pytest.raises(InvalidRequest) as caught:
            load([MediaRef(kind, "f", source=samples.data_url(data))], MediaTensors(), OPTIONS, POSITIONS)
        said = str(caught.value)
        assert not any(word in said for word in ("0x", "<", "object", "Errno", "none", "/")), said
    with pytest.raises(InvalidRequest, match=f"known format.*taken are {taken}"):
        load([MediaRef(kind, "f", source="data:,nothing")], MediaTensors(), OPTIONS, POSITIONS)


def test_bombs_take_bounded_memory():
    """In a process of its own: the high-water mark cannot be reset."""
    code = """
import resource
from python_backends.config.errors import InvalidRequest
from python_backends.thinker.media.loader import MediaTensors, load
from python_backends.thinker.media.options import MediaOptions
from python_backends.thinker.media.refs import MediaRef
from tests.thinker import samples, test_bad_media as bad
files = [("image", bad.png_bomb(30000)), ("image", bad.text_bomb()), ("audio", bad.long_silence(10))]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
for kind, data in files:
    try:
        load([MediaRef(kind, "f", source=samples.data_url(data))], MediaTensors(), MediaOptions(), 13)
        raise SystemExit("accepted")
    except InvalidRequest:
        pass
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 10, done.stdout


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("data:audio/wav;base64,!!!!", "not base64"),
        ("data:audio/wav;base64,AAAAA", "not base64"),
        ("data:audio/wav;base64", "no comma"),
        ("nonsense", "must be a data:"),
        ("ftp://host/file.wav", "must be a data:"),
        ("data:;base64," + "A" * (90 << 20), "larger than"),
    ],
    ids=["alphabet", "padding", "comma", "nothing", "scheme", "size"],
)
def test_bad_source(source, reason):
    started = time.thread_time()
    with pytest.raises(InvalidRequest, match=reason):
        load([MediaRef("audio", "f", source=source)], MediaTensors(), OPTIONS, POSITIONS)
    assert time.thread_time() - started < SECONDS


@pytest.mark.parametrize(
    ("kind", "tensors", "reason"),
    [
        ("audio", MediaTensors(audio=((np.zeros((2, 8), np.float32), 16000),)), "must be floating-point samples"),
        ("audio", MediaTensors(audio=((np.zeros(8, np.int16), 16000),)), "must be floating-point samples"),
        ("audio", MediaTensors(audio=((np.zeros(8, np.float32), 10),)), "rate from 1000"),
        ("audio", MediaTensors(audio=((np.zeros(0, np.float32), 16000),)), "no sound"),
        ("image", MediaTensors(image=(np.zeros((8, 8), np.uint8),)), "must be uint8"),
        ("image", MediaTensors(image=(np.zeros((8, 8, 3), np.float32),)), "must be uint8"),
        ("video", MediaTensors(video=(np.zeros((0, 8, 8, 3), np.uint8),)), "must be uint8"),
        ("video", MediaTensors(video=(np.zeros((300, 8, 8, 3), np.uint8),)), "300 frames, more than 256"),
        ("video", MediaTensors(video=(np.zeros((255, 700, 700, 3), np.uint8),)), "more than 100000000 pixels"),
    ],
)
def test_bad_tensor(kind, tensors, reason):
    with pytest.raises(InvalidRequest, match=reason):
        load([MediaRef(kind, "f", tensor=0)], tensors, OPTIONS, POSITIONS)


def refs(*parts: dict) -> list[MediaRef]:
    return parse_messages([{"role": "user", "content": list(parts)}], PromptRules((), 4096, OPTIONS)).media


SPEAKING = {"type": "video", "video": "data:,x", "use_audio_in_video": True}


@pytest.mark.parametrize(
    ("parts", "tensors", "field", "reason"),
    [
        ([{"type": "audio", "audio": "data:,x"}] * 9, {}, "messages[0].content[8].audio", "takes 8"),
        ([SPEAKING] * 5, {}, "messages[0].content[4].video", "takes 4"),
        ([{"type": "image", "tensor": 1}], {"image": 1}, "messages[0].content[0].tensor", "1 were sent"),
        ([], {"image": 1}, "IMAGE[0]", "named by no message"),
        ([SPEAKING, {"type": "video", "video": "data:,x"}], {}, "messages[0].content[1].video", "same for all videos"),
        (
            [{"type": "video", "tensor": 0, "use_audio_in_video": True}],
            {"video": 1},
            "messages[0].content[0].tensor",
            "raw",
        ),
    ],
)
def test_wrong_combinations(parts, tensors, field, reason):
    given = MediaTensors(**{kind: tuple([np.zeros((2, 8, 8, 3), np.uint8)] * count) for kind, count in tensors.items()})
    with pytest.raises(InvalidRequest, match=reason) as error:
        check_refs(refs(*parts), given, OPTIONS)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_bytes": 0}, "media.max_bytes"),
        ({"allowed_media_domains": "a.com"}, "media.allowed_media_domains"),
        ({"allowed_local_media_path": "/does/not/exist"}, "media.allowed_local_media_path"),
    ],
)
def test_wrong_options_name_the_option(fields, reason):
    with pytest.raises(ValueError, match=reason):
        MediaOptions(**fields)


def test_engine_reports_the_field_and_serves_on(media_server):
    bad = base64.b64encode(b"not a wave").decode()
    part = {"type": "input_audio", "input_audio": {"data": bad, "format": "wav"}}
    started = time.monotonic()
    with pytest.raises(InvalidRequest) as error:
        media_server.answer([{"role": "user", "content": [{"type": "text", "text": "Listen:"}, part]}])
    assert time.monotonic() - started < 20 * SECONDS
    assert error.value.field == "messages[0].content[1].input_audio.data"
    assert media_server.answer("Hello", max_tokens=3, ignore_eos=True).finish.reason == "length"


def test_prompt_that_media_make_too_long(media_server):
    sound = samples.wav(np.zeros(16000 * 400, dtype=np.float32), subtype="PCM_16")
    part = {"type": "audio", "audio": samples.data_url(sound)}
    with pytest.raises(InvalidRequest) as error:
        media_server.answer([{"role": "user", "content": [part]}])
    assert error.value.field == "messages"
