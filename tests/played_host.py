"""An engine process whose engine is played: the product's host around a generator."""

from __future__ import annotations

import os
import sys
import types

from tests import played_engines as played


def _module(name: str, **members) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


def _options(step_ms: float, **rest) -> played.PlayedOptions:
    """What a deployment sets for real engines has no meaning here."""
    return played.PlayedOptions(step_ms)


def main() -> int:
    """Put the generators where the stages import their engines from, and run the host, on PLAYED_CORES if it is set."""
    if cores := os.environ.get("PLAYED_CORES", "").split():
        os.sched_setaffinity(0, map(int, cores))
    _module(
        "python_backends.thinker.engine",
        ThinkerEngine=played.PlayedThinker,
        ThinkerOptions=_options,
        ThinkerRequest=played.PlayedThinkerRequest,
        preload=lambda options: None,
    )
    _module(
        "python_backends.talker.engine",
        TalkerEngine=lambda checkpoint, options, sink: played.PlayedTalker(options, sink),
        TalkerOptions=_options,
        TalkerRequest=played.PlayedTalkerRequest,
        TextChunk=played.PlayedTextChunk,
    )
    _module(
        "python_backends.code2wav.engine",
        Code2WavEngine=lambda checkpoint, options, sink: played.PlayedCode2Wav(options, sink),
        Code2WavOptions=_options,
        Code2WavRequest=played.PlayedCode2WavRequest,
    )
    from python_backends.engine_host.__main__ import main as host

    return host()


if __name__ == "__main__":
    # As the product's host does: a thread that waits on standard input would keep the interpreter from ending.
    os._exit(main())
