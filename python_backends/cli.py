"""The command `qwen3-omni`: serve a model, render a Triton model repository, ask a running server.

    qwen3-omni serve --model PATH|HUB_ID [options] [-- more tritonserver options]
    qwen3-omni render [--deploy-config YAML] [--set KEY=VALUE ...] --out DIR
    qwen3-omni ask [options of the runner, docs/runner.md]

In a clone of the repository `serve` is scripts/serve.sh; from an installed wheel it renders a repository and runs the
`tritonserver` of PATH, as in NVIDIA's container.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from python_backends.config.deploy import DeployError, load_deploy_config
from python_backends.config.exit_timeout import (
    KILL_GRACE_S,
    OPTION,
    SHORTEST_KILL_S,
    exit_timeout_for,
    given_exit_timeout,
)
from python_backends.config.repository import repository_files, write_repository

HOME = Path(__file__).resolve().parents[1]  # the clone, or site-packages
SERVE = HOME / "scripts" / "serve.sh"


def render(arguments: Sequence[str]) -> int:
    """Write a Triton model repository; 2 and the reason on stderr when the deploy configuration is wrong."""
    parser = argparse.ArgumentParser(
        prog="qwen3-omni render",
        description="Write a Triton model repository for a deploy configuration: a profile's name or a YAML file. "
        "Without one: every model with one instance, for whatever configuration is chosen when the server starts.",
    )
    parser.add_argument("--deploy-config", metavar="YAML")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    args = parser.parse_args(arguments)
    if args.settings and args.deploy_config is None:
        parser.error("--set needs --deploy-config")
    # In a clone the committed repository finds the code beside itself.
    in_clone = args.out.resolve().parent == HOME
    if args.deploy_config is None:
        write_repository(args.out, repository_files(home=None if in_clone else HOME))
        return 0
    try:
        config = load_deploy_config(args.deploy_config, args.settings)
    except DeployError as error:
        print(error, file=sys.stderr)
        return 2
    for note in config.notes:
        print(f"note: {note}", file=sys.stderr)
    if args.out.exists():
        if any(args.out.iterdir()) and not (args.out / "deploy.yaml").exists():
            print(f"{args.out} is not empty and no rendering of this program: nothing written", file=sys.stderr)
            return 2
        shutil.rmtree(args.out)
    write_repository(args.out, repository_files(config, HOME))
    return 0


def serve(arguments: Sequence[str]) -> int:
    """Serve in the foreground until SIGINT or SIGTERM; returns tritonserver's exit status."""
    if SERVE.exists():
        os.execv(SERVE, [str(SERVE), *arguments])
    arguments = list(arguments)
    own, more = arguments, []
    if "--" in arguments:
        own, more = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    parser = argparse.ArgumentParser(prog="qwen3-omni serve", usage="%(prog)s [options] [-- tritonserver's options]")
    parser.add_argument("--model", required=True, help="checkpoint: a directory or a hub id")
    parser.add_argument("--deploy-config", metavar="YAML", help="profile or file (default: by the machine)")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    for name, port in (("grpc", 8001), ("http", 8000), ("metrics", 8002)):
        parser.add_argument(f"--{name}-port", type=int, default=port, help=f"{port}")
    args = parser.parse_args(own)
    triton = shutil.which("tritonserver")
    if triton is None:
        print("tritonserver is not on PATH: install it, or run this in NVIDIA's Triton container", file=sys.stderr)
        return 1
    try:
        config = load_deploy_config(args.deploy_config)
    except DeployError as error:
        print(error, file=sys.stderr)
        return 2
    exit_s = given_exit_timeout(more)
    exit_s = exit_timeout_for(config.keys.drain_timeout_s) if exit_s is None else exit_s
    with tempfile.TemporaryDirectory(prefix="qwen3-omni.") as directory:
        repository = Path(directory) / "model_repository"
        write_repository(repository, repository_files(config, HOME))
        command = [triton, "--model-repository", str(repository), "--disable-auto-complete-config"]
        command += ["--grpc-infer-allocation-pool-size", "1", OPTION, str(exit_s)]
        for name in ("grpc", "http", "metrics"):
            command += [f"--{name}-address", args.host, f"--{name}-port", str(getattr(args, f"{name}_port"))]
        environment = os.environ | {"OMNI_MODEL": args.model, "OMNI_HOME": str(HOME), "OMNI_RUNTIME_DIR": directory}
        environment.setdefault("ENGINE_PYTHON", sys.executable)
        # As serve.sh does: a fixed threshold lets Triton return the memory of large responses.
        environment.setdefault("MALLOC_MMAP_THRESHOLD_", "131072")
        environment.pop("OMNI_DEPLOY_CONFIG", None)  # the repository has it
        return _run(command + more, environment, max(SHORTEST_KILL_S, exit_s + KILL_GRACE_S))


def _run(command: list[str], environment: dict[str, str], kill_s: float) -> int:
    """Run `command`, pass SIGINT and SIGTERM on, and kill what has not ended `kill_s` seconds after one."""
    # A session of its own keeps a terminal's Ctrl-C from the stubs, which must outlive the requests that they serve.
    process = subprocess.Popen(command, env=environment, start_new_session=True)

    def stop(*_: object) -> None:
        process.terminate()
        signal.signal(signal.SIGALRM, lambda *_: process.kill())
        signal.alarm(round(kill_s))

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return process.wait()


def ask(arguments: Sequence[str]) -> int:
    """Send one prompt or many to a running server; see `client.run`."""
    from client.run import main as client

    return client(arguments, "qwen3-omni ask")


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"serve": serve, "render": render, "ask": ask}


def main() -> int:
    """Run the command that the first argument names."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        return COMMANDS[name](sys.argv[2:])
    wanted = name in ("-h", "--help")
    print(__doc__ if wanted else f"qwen3-omni: there is no command {name!r}: {', '.join(COMMANDS)}", file=sys.stderr)
    return 0 if wanted else 2


if __name__ == "__main__":
    sys.exit(main())
