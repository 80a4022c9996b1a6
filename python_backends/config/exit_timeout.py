"""How long Triton may take to stop, against how long running requests may go on then (`drain_timeout_s`).

    python -m python_backends.config.exit_timeout [-- OPTIONS OF TRITONSERVER]

prints two times in whole seconds for the deploy configuration that `OMNI_DEPLOY_CONFIG` names: the exit timeout (that
of the options if they have one), and how long after the signal a server that has not ended is to be killed.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from python_backends.config.deploy import DeployConfig, DeployError, load_deploy_config

OPTION = "--exit-timeout-secs"
_SHORTEST_NAME = "--exit-t"  # there is --exit-on-error too
TRITON_DEFAULT_S = 30
SHORTEST_S = 20
SHORTEST_KILL_S = 25
KILL_GRACE_S = 5
AFTER_DRAIN_S = 15  # for engines that do not end when they are asked, and Triton's own unloading


def exit_timeout_for(drain_s: float) -> int:
    """What to start Triton with, in whole seconds."""
    return max(SHORTEST_S, math.ceil(drain_s) + AFTER_DRAIN_S)


def given_exit_timeout(options: Sequence[str]) -> int | None:
    """The exit timeout, in seconds, that tritonserver reads from its command line; None when it is not given.

    As it does: an option may be cut short as long as no other begins so, and a number ends where its digits end.
    """
    found = None
    for at, word in enumerate(options):
        name, equals, value = word.partition("=")
        if OPTION.startswith(name) and len(name) >= len(_SHORTEST_NAME):
            text = value if equals else next(iter(options[at + 1 : at + 2]), "")
            number = re.match(r"\s*[+-]?\d+", text)
            found = int(number[0]) if number else None
    return found


def command_line_of(pid: int) -> list[str]:
    """The words of a process's command line; none when they cannot be read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def check_drain_time(deploy: DeployConfig, command_line: Sequence[str]) -> None:
    """Raises DeployError when a tritonserver of this command line would cut the drain time short.

    Another program that has Triton inside of it sets its exit timeout where nobody can see it: it passes.
    """
    if not any(Path(word).name == "tritonserver" for word in command_line):
        return
    given = given_exit_timeout(command_line)
    limit_s, origin = (TRITON_DEFAULT_S, "Triton's default") if given is None else (given, "as the server was started")
    drain_s = deploy.keys.drain_timeout_s
    if drain_s >= limit_s:
        raise DeployError(
            f"{deploy.path}: drain_timeout_s: must be below tritonserver's {OPTION}, which is {limit_s} ({origin}); "
            f"got {drain_s:g}. Lower it, or start tritonserver with {OPTION} {exit_timeout_for(drain_s)}"
        )


def main(arguments: Sequence[str]) -> int:
    """Print the two times; 2 and the reason on stderr when the deploy configuration is wrong."""
    try:
        drain_s = load_deploy_config().keys.drain_timeout_s
    except DeployError as error:
        print(error, file=sys.stderr)
        return 2
    given = given_exit_timeout(arguments)
    exit_s = exit_timeout_for(drain_s) if given is None else given
    print(exit_s, max(SHORTEST_KILL_S, exit_s + KILL_GRACE_S))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
