"""Which vLLM can be given media."""

from __future__ import annotations

import logging
from dataclasses import replace

from packaging.version import Version

from python_backends.thinker.options import ThinkerOptions

log = logging.getLogger(__name__)
# Read in the sources of 0.26 to 0.32 (`Qwen3OmniMoeThinkerForConditionalGeneration`): before, every id after the start
# of a medium had a position one too high, and a film that is heard ended the whole engine with a ValueError.
FIRST_VLLM = Version("0.32")


def with_usable_media(options: ThinkerOptions) -> ThinkerOptions:
    """`options`, without media and with a warning where the installed vLLM computes them wrongly.

    To be called after `prepare_process`: it imports vLLM.
    """
    if options.media is None:
        return options
    from vllm import __version__

    version = Version(__version__)
    if version.is_devrelease or version >= FIRST_VLLM:
        return options
    log.warning("vLLM %s places media wrongly: this Thinker takes text only; media need vLLM %s", version, FIRST_VLLM)
    return replace(options, media=None)
