"""A Talker that hangs holds up requests that speak, and no others."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from tests.e2e.test_profiles_rules import PROFILE, Running, played_server, request, until
from tests.server import PATIENT_S, SOONER_S

SINGLE = PROFILE | {"stages": [{**stage, "replicas": 1} for stage in PROFILE["stages"]]}
SPOKEN, WRITTEN = request(5), request(5, modalities=["text"])


def test_streams_that_are_cancelled_while_the_talker_hangs_are_freed_when_it_goes_on(tiny_checkpoint, tmp_path):
    """A Talker that was never sent an abort before: there is no connection yet that would keep them."""
    with played_server(tiny_checkpoint, tmp_path, SINGLE) as server:
        talker = server.status("talker")["pid"]

        async def run():
            async with Running(server.url) as running:
                speaking = running.start(*[request(3000, 4000)] * 4)
                await until(lambda: server.status("code2wav")["open"] == 4)
                os.kill(talker, signal.SIGSTOP)
                for one in speaking:
                    one.cancel()
                await asyncio.gather(*speaking, return_exceptions=True)
                await until(lambda: server.status("thinker")["open"] == 0)
                await asyncio.sleep(3)

        try:
            asyncio.run(run())
        finally:
            os.kill(talker, signal.SIGCONT)
        server.wait_idle()


def test_text_alone_is_answered_while_the_talker_hangs(tiny_checkpoint, tmp_path):
    with played_server(tiny_checkpoint, tmp_path, SINGLE) as server:
        talker = server.status("talker")["pid"]

        async def run():
            async with Running(server.url) as running:
                speaking = running.start(request(300, 300))[0]
                await until(lambda: server.status("code2wav")["open"] == 1)
                os.kill(talker, signal.SIGSTOP)
                opening = running.start(SPOKEN)[0]
                await asyncio.sleep(0.5)  # by now it waits for the Talker
                asked = time.monotonic()
                for _ in range(3):
                    assert await asyncio.wait_for(running.start(WRITTEN)[0], SOONER_S)
                seconds = time.monotonic() - asked
                assert not speaking.done() and not opening.done()
                os.kill(talker, signal.SIGCONT)
                return seconds, await asyncio.wait_for(asyncio.gather(speaking, opening), PATIENT_S)

        try:
            seconds, answers = asyncio.run(run())
        finally:
            os.kill(talker, signal.SIGCONT)
        assert seconds < SOONER_S and all(answers), "those that speak are served once the Talker goes on"
        server.wait_idle()
