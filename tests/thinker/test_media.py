"""Audio, images and video: ids equal `transformers`' and hidden rows within 1e-4."""

from __future__ import annotations

import base64
import io
import time

import av
import numpy as np
import pytest
from PIL import Image

from python_backends.thinker.engine import MediaTensors
from tests.thinker import samples

MAX_TOKENS = 24
SOUND = samples.tone(1.0)
OTHER = samples.tone(1.25, hertz=700.0)
PICTURE = samples.picture()
TALL = samples.picture(64, 128, seed=5)
FILM = samples.film(frames=20, rate=8)
TALKIE = samples.film(frames=20, rate=8, sound=samples.tone(2.5))


def ask(*parts: dict | str, system: str | None = None) -> list[dict]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    head = [{"role": "system", "content": system}] if system else []
    return [*head, {"role": "user", "content": content}]


def audio(samples_16k: np.ndarray) -> dict:
    return {"type": "audio_url", "audio_url": {"url": samples.data_url(samples.wav(samples_16k))}}


def image(pixels: np.ndarray) -> dict:
    return {"type": "image_url", "image_url": {"url": samples.data_url(samples.png(pixels), "image/png")}}


def video(data: bytes, **options) -> dict:
    return {"type": "video_url", "video_url": {"url": samples.data_url(data, "video/mp4"), **options}}


def frames_of(data: bytes, step: int, count: int) -> tuple[np.ndarray, float]:
    """`count` frames, those shown every `step` half positions (1/26 s), and their rate."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        kept = [int(at * step / 26 * float(stream.average_rate) + 1e-3) for at in range(count)]
    return np.stack([frames[at] for at in kept]), 26 / step


def sound_of(data: bytes) -> np.ndarray:
    resampler = av.AudioResampler(format="flt", layout="mono", rate=16000)
    with av.open(io.BytesIO(data)) as container:
        blocks = [out.to_ndarray()[0] for frame in container.decode(audio=0) for out in resampler.resample(frame)]
        blocks += [out.to_ndarray()[0] for out in resampler.resample(None)]
    whole = np.concatenate(blocks)
    return np.pad(whole, (0, -len(whole) % 160))


def check(answer, expected) -> None:
    assert answer.prompt_ids == expected.prompt_ids
    assert answer.ids == expected.ids
    assert answer.text == expected.text
    prompt = answer.multimodal
    assert prompt.positions.tolist() == expected.positions.tolist()
    assert prompt.hidden_rows.dtype == np.float32
    np.testing.assert_allclose(prompt.hidden_rows, expected.rows, atol=1e-4, rtol=0)
    assert np.abs(prompt.hidden_rows).max() > 0.1
    inputs = expected.inputs
    for ours, theirs in (
        (prompt.image_grid_thw, inputs.get("image_grid_thw")),
        (prompt.video_grid_thw, inputs.get("video_grid_thw")),
        (prompt.video_second_per_grid, inputs.get("video_second_per_grid")),
    ):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-6)
    mask = inputs.get("feature_attention_mask")
    assert (prompt.audio_seqlens is None) == (mask is None)
    if mask is not None:
        assert prompt.audio_seqlens.tolist() == mask.sum(-1).tolist()


def case(name: str):
    """Messages, and what `transformers`' processor gets for them."""
    # 16 frames of 2.5 s are 4.06 half positions apart, rounded down.
    frames, fps = frames_of(FILM, 4, 16)
    pictures = [Image.fromarray(PICTURE), Image.fromarray(TALL)]
    if name == "audio":
        return ask(audio(SOUND), "What is this?"), dict(audio=[SOUND])
    if name == "two audios":
        return ask("First:", audio(SOUND), "then:", audio(OTHER), "Which is higher?"), dict(audio=[SOUND, OTHER])
    if name == "image":
        return ask(image(PICTURE), "What is this?"), dict(images=pictures[:1])
    if name == "two images":
        return ask(image(PICTURE), image(TALL), "Compare."), dict(images=pictures)
    if name == "video":
        return ask(video(FILM), "What happens?"), dict(videos=[frames], fps=fps)
    if name == "mixed":
        messages = ask(image(PICTURE), "a", audio(SOUND), "b", video(FILM), "c", image(TALL), system="Be brief.")
        return messages, dict(images=pictures, audio=[SOUND], videos=[frames], fps=fps)
    if name == "audio in video":
        frames, fps = frames_of(TALKIE, 13, 5)
        given = dict(videos=[frames], audio=[sound_of(TALKIE)], fps=fps, use_audio_in_video=True)
        return ask(video(TALKIE, use_audio_in_video=True), "Who speaks?"), given
    if name == "heard film beside sounds":
        frames, fps = frames_of(TALKIE, 13, 5)
        given = dict(videos=[frames], audio=[SOUND, sound_of(TALKIE), OTHER], fps=fps, use_audio_in_video=True)
        film = video(TALKIE, use_audio_in_video=True)
        return ask(audio(SOUND), "a", film, "b", image(PICTURE), audio(OTHER), "c"), given | dict(images=pictures[:1])
    if name == "silent film to be heard":
        return ask(video(FILM, use_audio_in_video=True), "Who speaks?"), dict(videos=[frames], fps=fps)
    if name == "turns":
        messages = [
            *ask(image(PICTURE), "What is this?"),
            {"role": "assistant", "content": "A picture."},
            *ask(audio(SOUND), "And this?"),
        ]
        return messages, dict(images=pictures[:1], audio=[SOUND])
    raise KeyError(name)


CASES = (
    "audio",
    "two audios",
    "image",
    "two images",
    "video",
    "mixed",
    "audio in video",
    "turns",
    "heard film beside sounds",
    "silent film to be heard",
)


@pytest.mark.parametrize("name", CASES)
def test_ids_and_rows_equal_transformers(media_server, oracle, name):
    messages, given = case(name)
    check(media_server.answer(messages, max_tokens=MAX_TOKENS), oracle.media(messages, MAX_TOKENS, **given))


def test_two_heard_films_and_sounds_between_them(media_server, oracle):
    """A heard film beside other audio parts: each keeps its own sound, wherever the others stand."""
    other = samples.film(frames=24, rate=8, sound=samples.tone(3.0, hertz=900.0))
    (frames, fps), (more, _) = frames_of(TALKIE, 13, 5), frames_of(other, 13, 6)
    messages = ask(
        video(TALKIE, use_audio_in_video=True), audio(SOUND), "a", video(other, use_audio_in_video=True), audio(OTHER)
    )
    given = dict(videos=[frames, more], audio=[sound_of(TALKIE), SOUND, sound_of(other), OTHER], fps=fps)
    expected = oracle.media(messages, MAX_TOKENS, use_audio_in_video=True, **given)
    check(media_server.answer(messages, max_tokens=MAX_TOKENS), expected)


def test_silent_film_with_use_audio_in_video_is_noted(media_server):
    """Alone and beside a heard film; the answer is that of the film without the option."""
    messages, _ = case("silent film to be heard")
    answer = media_server.answer(messages, max_tokens=MAX_TOKENS)
    field = "messages[0].content[0].video_url.url"
    assert answer.finish.notes == (f"{field}: has no sound track; it was shown as a silent film",)
    plain = media_server.answer(ask(video(FILM), "Who speaks?"), max_tokens=MAX_TOKENS)
    assert (answer.prompt_ids, answer.ids, plain.finish.notes) == (plain.prompt_ids, plain.ids, ())
    films = [video(data, use_audio_in_video=True) for data in (TALKIE, FILM, TALKIE)]
    both = media_server.answer(ask(*films, "Who?"), max_tokens=4, ignore_eos=True)
    assert len(both.finish.notes) == 1
    assert both.finish.notes[0].startswith("messages[0].content[1].")
    assert len(both.ids) == 4


def test_text_beside_media_captures_nothing(media_server, oracle):
    messages = ask("Just words.")
    answer = media_server.answer(messages, max_tokens=MAX_TOKENS)
    expected = oracle.text(messages, MAX_TOKENS)
    assert (answer.ids, answer.multimodal) == (expected.ids, None)


def test_all_at_once_as_alone(media_server, oracle):
    wanted = {name: oracle.media(messages, MAX_TOKENS, **given) for name in CASES for messages, given in [case(name)]}
    streams = [(name, media_server.start(case(name)[0], max_tokens=MAX_TOKENS)) for name in CASES * 2]
    for name, stream_id in streams:
        check(media_server.sink.wait(stream_id), wanted[name])


def test_silent_request_gets_no_rows(media_server):
    messages, _ = case("image")
    silent = media_server.answer(messages, max_tokens=MAX_TOKENS, speak=False)
    assert silent.multimodal is None
    assert silent.ids == media_server.answer(messages, max_tokens=MAX_TOKENS).ids


def test_raw_tensors_equal_files(media_server):
    frames, fps = frames_of(FILM, 4, 16)
    part = {"type": "video", "tensor": 0, "fps": fps}
    messages = ask({"type": "image", "tensor": 0}, "a", {"type": "audio", "tensor": 0}, "b", part)
    media = MediaTensors(audio=((SOUND, 16000),), image=(PICTURE,), video=(frames,))
    raw = media_server.answer(messages, max_tokens=MAX_TOKENS, media=media)
    files = media_server.answer(ask(image(PICTURE), "a", audio(SOUND), "b", video(FILM)), max_tokens=MAX_TOKENS)
    assert raw.prompt_ids == files.prompt_ids
    assert raw.ids == files.ids
    np.testing.assert_array_equal(raw.multimodal.hidden_rows, files.multimodal.hidden_rows)


@pytest.mark.parametrize(
    "part",
    [
        {
            "type": "input_audio",
            "input_audio": {"data": base64.b64encode(samples.wav(SOUND)).decode(), "format": "wav"},
        },
        {"type": "audio", "audio": samples.data_url(samples.wav(SOUND))},
        {"type": "audio_url", "audio_url": samples.data_url(samples.wav(SOUND))},
    ],
    ids=["input_audio", "short", "plain url"],
)
def test_other_forms_mean_the_same(media_server, part):
    one = media_server.answer(ask(audio(SOUND), "What is this?"), max_tokens=MAX_TOKENS)
    other = media_server.answer(ask(part, "What is this?"), max_tokens=MAX_TOKENS)
    assert other.prompt_ids == one.prompt_ids
    assert other.ids == one.ids


def test_two_videos_of_different_rates(media_server, oracle):
    """`transformers`' processor has one rate for all videos; its model takes one for each."""
    long = samples.film(frames=40, rate=8)
    (short_frames, _), (long_frames, _) = frames_of(FILM, 4, 16), frames_of(long, 8, 16)
    messages = ask(video(FILM), video(long), "Compare.")
    expected = oracle.media(messages, MAX_TOKENS, videos=[short_frames, long_frames], second_per_grid=[4 / 13, 8 / 13])
    check(media_server.answer(messages, max_tokens=MAX_TOKENS), expected)


def test_prefix_cached_prompt_is_computed_again_for_its_rows(media_server, oracle):
    messages, given = case("two images")
    expected = oracle.media(messages, MAX_TOKENS, **given)
    # Silent first: its blocks are in the cache, and no rows were taken.
    media_server.answer(messages, max_tokens=MAX_TOKENS, speak=False)
    check(media_server.answer(messages, max_tokens=MAX_TOKENS), expected)
    check(media_server.answer(messages, max_tokens=MAX_TOKENS), expected)


def test_abort_while_media_are_prepared(media_server):
    messages, _ = case("mixed")
    for _ in range(3):
        media_server.engine.abort(media_server.start(messages, max_tokens=2000, ignore_eos=True))
    deadline = time.monotonic() + 60
    while any(media_server.engine.stats().values()):
        assert time.monotonic() < deadline, media_server.engine.stats()
        time.sleep(0.02)
