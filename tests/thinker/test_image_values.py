"""Images of every mode and kind against the pixels that they were made of."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.engine import MediaOptions
from python_backends.thinker.media.image import decode_image
from tests.thinker.samples import corners

OPTIONS = MediaOptions()


def saved(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


GREY = np.tile(np.linspace(0, 255, 64).round().astype(np.uint8), (48, 1))


def white_is_zero(tiff: bytes) -> bytes:
    """The tag PhotometricInterpretation, a short, from 1 to 0."""
    assert tiff.count(b"\x06\x01\x03\0\x01\0\0\0\x01\0") == 1
    return tiff.replace(b"\x06\x01\x03\0\x01\0\0\0\x01\0", b"\x06\x01\x03\0\x01\0\0\0\0\0")


def shades(values: np.ndarray) -> np.ndarray:
    """The grey of an RGB image, which must be grey."""
    assert (values[..., 0] == values[..., 1]).all()
    assert (values[..., 0] == values[..., 2]).all()
    return values[..., 0]


@pytest.mark.parametrize(
    "data",
    [
        saved(Image.fromarray(GREY.astype(np.uint16) * 257), "PNG"),
        saved(Image.fromarray(GREY.astype(np.uint16) * 257), "TIFF"),
        saved(Image.fromarray(GREY.astype(np.int32) * 257), "TIFF"),
        saved(Image.fromarray(GREY.astype(np.float32) / 255), "TIFF"),
        saved(Image.fromarray(GREY.astype(np.float32)), "TIFF"),
        white_is_zero(saved(Image.fromarray(65535 - GREY.astype(np.uint16) * 257), "TIFF")),
        saved(Image.fromarray(GREY), "PNG"),
        saved(Image.fromarray(GREY).convert("P"), "PNG"),
        saved(Image.fromarray(np.dstack([GREY, np.full_like(GREY, 255)])), "PNG"),
        saved(Image.merge("CMYK", [Image.new("L", (64, 48))] * 3 + [Image.fromarray(255 - GREY)]), "TIFF"),
    ],
    ids=[
        "I;16 png",
        "I;16 tiff",
        "I tiff",
        "F tiff 0-1",
        "F tiff 0-255",
        "I;16 tiff, white is zero",
        "L",
        "P",
        "LA",
        "CMYK tiff",
    ],
)
def test_grey_of_16_bits_and_other_modes(data):
    """16-bit grey arrived almost white."""
    image = decode_image(data, "f", OPTIONS)
    assert image.mode == "RGB"
    np.testing.assert_allclose(shades(np.asarray(image)).astype(int), GREY, atol=1)


def test_modes_that_have_transparent_parts():
    clear = np.zeros_like(GREY)
    clear[:, :32] = 255
    wanted = np.where(clear > 0, GREY, 255)
    palette = Image.fromarray(GREY).convert("P")
    index = int(np.asarray(palette)[0, 0])
    for image in (Image.fromarray(np.dstack([GREY, clear])), Image.fromarray(np.dstack([GREY] * 3 + [clear]))):
        np.testing.assert_allclose(shades(np.asarray(decode_image(saved(image, "PNG"), "f", OPTIONS))), wanted, atol=1)
    got = shades(np.asarray(decode_image(saved(palette, "PNG", transparency=index), "f", OPTIONS)))
    np.testing.assert_allclose(got.astype(int), np.where(np.asarray(palette) == index, 255, GREY), atol=1)


@pytest.mark.parametrize("value", [-1.0, 300.0, np.nan, np.inf])
def test_grey_that_has_no_white_is_refused(value):
    data = saved(Image.fromarray(np.full((8, 8), value, np.float32)), "TIFF")
    with pytest.raises(InvalidRequest, match="holds grey values below 0"):
        decode_image(data, "f", OPTIONS)


def test_phone_photos_heic_and_avif():
    """Right colours, upright, and transparent parts on white."""
    pixels = corners(128, 192)
    turned = Image.Exif()
    turned[0x0112] = 6
    for kind in ("HEIF", "AVIF"):
        plain = np.asarray(decode_image(saved(Image.fromarray(pixels), kind, quality=95), "f", OPTIONS))
        assert np.abs(plain.astype(int) - pixels).mean() < 4
        data = saved(Image.fromarray(pixels), kind, quality=95, exif=turned.tobytes())
        upright = np.asarray(decode_image(data, "f", OPTIONS))
        assert upright.shape == (192, 128, 3)
        assert np.abs(upright.astype(int) - np.rot90(pixels, -1)).mean() < 6
        layer = np.dstack([pixels, np.zeros(pixels.shape[:2], np.uint8)])
        assert np.asarray(decode_image(saved(Image.fromarray(layer), kind), "f", OPTIONS)).min() > 250


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
def test_heic_and_avif_bombs_are_refused(kind):
    """By the size that the header tells, before any pixel is decoded; and when the header lies."""
    data = saved(Image.fromarray(corners(512, 512)), kind)
    with pytest.raises(InvalidRequest, match="has 512 x 512 pixels, more than 100000"):
        decode_image(data, "f", MediaOptions(max_image_pixels=100_000))
    at = data.index(b"ispe") + 8
    lie = data[:at] + (30000).to_bytes(4, "big") * 2 + data[at + 8 :]
    with pytest.raises(InvalidRequest, match="more than 50000000|known format"):
        decode_image(lie, "f", OPTIONS)
    with pytest.raises(InvalidRequest, match="damaged or cut|known format"):
        decode_image(data[: len(data) // 2], "f", OPTIONS)
