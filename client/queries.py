"""What the runner asks: its kinds of queries, their questions, their media and the requests made of them."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import av
import numpy as np
import soundfile

from client.chat import chat
from client.media import KINDS, file_part

BUNDLED = Path(__file__).resolve().parent / "media_files"
# What the published runners sample with; what is not named here is the server's.
SAMPLING: dict[str, dict[str, object]] = {
    "thinker": {"temperature": 0.9, "top_p": 0.9, "top_k": -1, "max_tokens": 1200, "repetition_penalty": 1.05},
    "talker": {"top_k": 50, "max_tokens": 4096},
}


@dataclass(frozen=True)
class Query:
    """A kind of query: its own question, and for each kind of media, in their order, the bundled files."""

    question: str
    media: dict[str, tuple[str, ...]] = field(default_factory=dict)
    use_audio_in_video: bool = False


SOUND, TWO_SOUNDS, PICTURE, FILM = ("greeting.wav",), ("greeting.wav", "weather.wav"), ("hill.png",), ("ball.mp4",)
QUERIES = {
    "text": Query("In about fifteen words: how can many sentences be turned into speech at once?"),
    "use_audio": Query("What is said in this recording?", {"audio": SOUND}),
    "use_image": Query("What can be seen in this picture?", {"image": PICTURE}),
    "use_video": Query("What happens in this film?", {"video": FILM}),
    "use_multi_audios": Query("How do these recordings differ?", {"audio": TWO_SOUNDS}),
    "mixed_modalities": Query(
        "Describe the recording, the picture and the film, one after the other.",
        {"audio": SOUND, "image": PICTURE, "video": FILM},
    ),
    "use_audio_in_video": Query("Does the speaker of this film describe what it shows?", {"video": FILM}, True),
}


class QueryError(ValueError):
    """An option of the query cannot be used; the message names it."""


@dataclass(frozen=True)
class Asked:
    """One request of a batch."""

    index: int
    prompt: str
    body: dict


def media_parts(args: argparse.Namespace) -> list[dict]:
    """The content parts of the query's media: the paths and URLs that were given, else the bundled files.

    Raises QueryError.
    """
    query = QUERIES[args.query_type]
    parts = []
    for kind in KINDS:
        given = getattr(args, f"{kind}_path")
        if given and kind not in query.media:
            raise QueryError(f"--{kind}-path is given, but --query-type {args.query_type} asks about no {kind}")
        options = {"num_frames": args.num_frames, "use_audio_in_video": query.use_audio_in_video}
        for source in given or [str(BUNDLED / name) for name in query.media.get(kind, ())]:
            rate = args.sampling_rate if kind == "audio" else None
            parts.append(_part(kind, source, rate, options if kind == "video" else {}))
    return parts


def _part(kind: str, source: str, rate: int | None, options: dict) -> dict:
    if source.startswith(("http://", "https://", "data:", "file://")):
        if rate is not None:
            raise QueryError("--sampling-rate cannot be used with a URL: the server reads it, at its own rate")
        return {"type": f"{kind}_url", f"{kind}_url": {"url": source, **options}}
    try:
        if rate is not None:
            return file_part(kind, source, data=_resampled(source, rate))
        return file_part(kind, source, **options)
    except OSError as error:
        raise QueryError(f"--{kind}-path {source}: {error.strerror or 'cannot be read'}") from None


def _resampled(path: str, rate: int) -> bytes:
    """The sound as a mono, 16-bit WAV file of `rate` samples a second."""
    pieces = []
    try:
        with av.open(path) as sound:
            resampler = av.AudioResampler("s16", "mono", rate)
            for frame in [*sound.decode(audio=0), None]:
                pieces += [piece.to_ndarray()[0] for piece in resampler.resample(frame)]
    except (av.FFmpegError, IndexError) as error:
        raise QueryError(f"--audio-path {path}: {getattr(error, 'strerror', None) or 'holds no sound'}") from None
    target = io.BytesIO()
    soundfile.write(target, np.concatenate(pieces), rate, format="WAV")
    return target.getvalue()


def prompts(args: argparse.Namespace) -> list[str]:
    """The texts to ask, each once. Raises QueryError."""
    if args.txt_prompts is None:
        return [args.prompt or QUERIES[args.query_type].question]
    if args.query_type != "text" or args.prompt is not None:
        raise QueryError("--txt-prompts goes with --query-type text and without --prompt")
    try:
        lines = Path(args.txt_prompts).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise QueryError(f"--txt-prompts {args.txt_prompts}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise QueryError(f"--txt-prompts {args.txt_prompts}: is not UTF-8 text") from None
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise QueryError(f"--txt-prompts {args.txt_prompts}: holds no prompt")
    return found


def requests(args: argparse.Namespace, texts: list[str], media: list[dict]) -> Iterator[Asked]:
    """The requests of a batch, each with a body of its own, made when they are asked for."""
    sampling = {} if args.sampling == "server" else SAMPLING
    for index in range(args.num_prompts or len(texts)):
        prompt = texts[index % len(texts)]
        content = [*(dict(part) for part in media), {"type": "text", "text": prompt}] if media else prompt
        stages = {stage: sampling.get(stage, {}) | dict(getattr(args, stage)) for stage in SAMPLING}
        body = chat(
            [{"role": "user", "content": content}],
            modalities=args.modalities,
            speaker=args.speaker,
            seed=None if args.seed is None else args.seed + index,
            audio_format="int16",
            sampling={stage: values for stage, values in stages.items() if values} or None,
        )
        yield Asked(index, prompt, body)
