"""Command line: send a prompt, print text as it arrives, write the WAV as its chunks arrive, print the timings."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from functools import partial

from client.media import KINDS, file_part
from client.streaming import AudioChunk, OmniClient, OmniClientError, Summary, TextDelta
from client.wav import WavWriter


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", default="Hello! Who are you?")
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC address of the server")
    parser.add_argument("--wav", help="write the speech to this file; without it only text is asked for")
    for kind in KINDS:
        reader = partial(_part, kind)
        parser.add_argument(
            f"--{kind}", dest="media", action="append", default=[], type=reader, metavar="FILE",
            help=f"{kind} in, as often as you like; files come before the text, in the order given",
        )  # fmt: skip
    parser.add_argument("--use-audio-in-video", action="store_true", help="hear the sound tracks of the videos too")
    parser.add_argument("--system", help="system prompt")
    parser.add_argument("--speaker", help="voice")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--sampling", type=json.loads, help='JSON, such as {"thinker": {"max_tokens": 64}}')
    parser.add_argument("--wait", type=float, default=0, help="seconds to wait for the server to become ready")
    return parser.parse_args()


def _part(kind: str, path: str) -> dict:
    try:
        return file_part(kind, path)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror}") from None


def _request(args: argparse.Namespace) -> dict:
    messages = [{"role": "system", "content": args.system}] if args.system else []
    content = [*args.media, {"type": "text", "text": args.text}] if args.media else args.text
    for part in args.media:
        if "video_url" in part:
            part["video_url"]["use_audio_in_video"] = args.use_audio_in_video
    request: dict = {"messages": [*messages, {"role": "user", "content": content}]}
    request["modalities"] = ["text", "audio"] if args.wav else ["text"]
    for name in ("speaker", "seed", "sampling"):
        if getattr(args, name) is not None:
            request[name] = getattr(args, name)
    return request


async def _run(args: argparse.Namespace) -> int:
    wav = WavWriter(args.wav) if args.wav else None
    first_text = first_audio = None
    try:
        async with OmniClient(args.url) as client:
            if args.wait:
                await client.wait_ready(args.wait)
            started = time.monotonic()
            async for event in client.stream(_request(args)):
                now = time.monotonic() - started
                if isinstance(event, TextDelta):
                    first_text = now if first_text is None else first_text
                    print(event.text, end="", flush=True)
                elif isinstance(event, AudioChunk):
                    first_audio = now if first_audio is None else first_audio
                    if wav is not None:
                        wav.write(event.samples)
                elif isinstance(event, Summary):
                    summary = event.body
            total = time.monotonic() - started
    except (OmniClientError, TimeoutError) as error:
        code = getattr(error, "code", "timeout")
        print(f"error: {code}: {error}", file=sys.stderr)
        return 1
    finally:
        if wav is not None:
            wav.close()
    print("\n")
    print(f"finish reason        {summary['finish_reason']} (seed {summary['seed']})")
    print(f"time to first text   {_ms(first_text)}")
    if wav is not None:
        print(f"time to first audio  {_ms(first_audio)}  (TTFP)")
        print(f"audio                {wav.seconds:.2f} s in {args.wav}")
        print(f"real-time factor     {total / wav.seconds:.3f}  (RTF)" if wav.seconds else "real-time factor     -")
    print(f"total                {total * 1000:.1f} ms")
    return 0


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"


def main() -> None:
    sys.exit(asyncio.run(_run(_arguments())))


if __name__ == "__main__":
    main()
