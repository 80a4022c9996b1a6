"""Which vLLM can be given media.

Around: vLLM 0.26 to 0.31. No longer needed when nothing older than 0.32 is to be run.
"""

from __future__ import annotations

import logging

from packaging.version import Version

from python_backends.thinker.media.options import MediaOptions

log = logging.getLogger(__name__)
# Read in the sources of 0.26 to 0.32 (`Qwen3OmniMoeThinkerForConditionalGeneration`): before, every id after the start
# of a medium had a position one too high, and a film that is heard ended the whole engine with a ValueError.
FIRST_VLLM = Version("0.32")


def usable_media(media: MediaOptions | None) -> MediaOptions | None:
    """`media`, or None and a warning where the installed vLLM computes them wrongly.

    To be called after `preload`: it imports vLLM.
    """
    if media is None:
        return None
    from vllm import __version__

    version = Version(__version__)
    if version.is_devrelease or version >= FIRST_VLLM:
        return media
    log.warning("vLLM %s places media wrongly: this Thinker takes text only; media need vLLM %s", version, FIRST_VLLM)
    return None
