"""Raw media in the flat Triton inputs: what they hold, and what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest

from client.media import RawMedia
from python_backends.config.errors import InvalidRequest
from python_backends.config.media_inputs import INPUTS, split_media

SOUNDS = ((np.arange(5, dtype=np.float32), 16000), (np.arange(3, dtype=np.float32) + 9, 48000))
PICTURES = (np.arange(24, dtype=np.uint8).reshape(4, 2, 3), np.arange(9, dtype=np.uint8).reshape(1, 3, 3))
FILMS = (np.arange(36, dtype=np.uint8).reshape(3, 2, 2, 3),)


def sent(media: RawMedia) -> dict[str, np.ndarray]:
    """The arrays that the client's inputs carry, as a server unpacks them."""
    types = {"FP32": np.float32, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8}
    return {
        tensor.name(): np.frombuffer(tensor._get_content(), types[tensor.datatype()]).reshape(tensor.shape())
        for tensor in media.inputs()
    }


def test_what_the_client_packs_comes_out_again_without_a_copy():
    inputs = sent(RawMedia(SOUNDS, PICTURES, FILMS))
    assert set(inputs) == set(INPUTS)
    media = split_media(inputs)
    for (got, rate), (want, wanted_rate) in zip(media.audio, SOUNDS, strict=True):
        np.testing.assert_array_equal(got, want)
        assert rate == wanted_rate and np.shares_memory(got, inputs["AUDIO"])
    for got, want in zip((*media.image, *media.video), (*PICTURES, *FILMS), strict=True):
        np.testing.assert_array_equal(got, want)
    assert all(np.shares_memory(image, inputs["IMAGE"]) for image in media.image)


def test_nothing_given_is_nothing():
    assert split_media({}) == split_media(sent(RawMedia()))
    assert RawMedia().inputs() == []


def changed(**inputs) -> dict[str, np.ndarray]:
    """Good inputs with some replaced, or left out where None."""
    return {k: v for k, v in (sent(RawMedia(SOUNDS, PICTURES, FILMS)) | inputs).items() if v is not None}


@pytest.mark.parametrize(
    ("inputs", "field", "reason"),
    [
        ({"AUDIO_RATES": None}, "AUDIO_RATES", "required beside AUDIO"),
        ({"IMAGE": None}, "IMAGE", "required beside IMAGE_SHAPES"),
        ({"VIDEO_SHAPES": None}, "VIDEO_SHAPES", "required beside VIDEO"),
        ({"AUDIO": np.zeros(8, np.float64)}, "AUDIO", r"float32 \[n\], got float64 \[8\]"),
        ({"IMAGE": np.zeros((11, 3), np.uint8)}, "IMAGE", r"uint8 \[n\]"),
        ({"IMAGE_SHAPES": np.ones((2, 4), np.int64)}, "IMAGE_SHAPES", r"int64 \[n, 3\]"),
        ({"SMELL": np.zeros(1, np.uint8)}, "SMELL", "there are AUDIO"),
        ({"AUDIO_RATES": np.array([1], np.int32)}, "AUDIO_RATES", "1 rates for 2 lengths"),
        ({"AUDIO_LENGTHS": np.array([5, 4])}, r"AUDIO_LENGTHS[1]", "beyond the 8 elements of AUDIO"),
        ({"AUDIO_LENGTHS": np.array([5, 2])}, "AUDIO", "has 8 elements, and AUDIO_LENGTHS name 7"),
        ({"AUDIO_LENGTHS": np.array([8, 0])}, r"AUDIO_LENGTHS[1]", "must be positive, got 0"),
        ({"IMAGE_SHAPES": np.array([[4, 2, 3], [-1, -3, 3]])}, r"IMAGE_SHAPES[1]", "must be positive, got -1, -3, 3"),
        ({"IMAGE_SHAPES": np.array([[4, 2, 4], [1, 3, 3]])}, r"IMAGE_SHAPES[0]", "3 colours"),
        ({"VIDEO_SHAPES": np.array([[2**62, 2**62, 2**62, 3]])}, r"VIDEO_SHAPES[0]", "beyond the 36 elements"),
    ],
)
def test_what_is_wrong_is_named(inputs, field, reason):
    with pytest.raises(InvalidRequest, match=reason) as error:
        split_media(changed(**inputs))
    assert error.value.field == field


@pytest.mark.parametrize(
    ("media", "field"),
    [
        (RawMedia(audio=[(np.zeros(4, np.int16), 16000)]), r"audio\[0\]"),
        (RawMedia(image=[PICTURES[0], np.zeros((4, 4), np.uint8)]), r"image\[1\]"),
        (RawMedia(video=[PICTURES[0]]), r"video\[0\]"),
    ],
)
def test_the_client_names_the_array(media, field):
    with pytest.raises(ValueError, match=field):
        media.inputs()
