"""Code2Wav: codec frames to 24 kHz audio. Names are imported on first use, so that plain types come without torch."""

from importlib import import_module

_MODULES = {
    "Code2WavEngine": "engine",
    "Code2WavOptions": "options",
    "Code2WavRequest": "options",
    "Code2WavSink": "options",
    "SAMPLE_RATE": "options",
}
__all__ = list(_MODULES)


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
