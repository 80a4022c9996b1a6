"""The shell scripts say what is wrong in one sentence, and leave nothing behind."""

import fcntl
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from scripts.benchmarks.server import free_port

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
PATIENT_S = 60  # for what takes a moment, and longer on a busy machine
PORT_OPTIONS = ("--grpc-port", "--http-port", "--metrics-port")


@pytest.fixture
def tmp_path():
    """Short enough for a server's TMPDIR, as pytest's own may not be."""
    with tempfile.TemporaryDirectory(prefix="omni-") as directory:
        yield Path(directory)


def run(*command, **environment):
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, env=os.environ | environment, timeout=300)


def free_ports():
    return [free_port() for _ in PORT_OPTIONS]


def port_options(ports):
    return [word for option, port in zip(PORT_OPTIONS, ports, strict=True) for word in (option, str(port))]


def wait_until(condition, timeout_s, what):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["setup.sh", "serve.sh", "demo.sh"])
def test_help_is_the_header(name):
    result = run(SCRIPTS / name, "--help")
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) >= 4
    assert "#" not in result.stdout


def test_setup_is_idempotent():
    result = run(SCRIPTS / "setup.sh")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_scripts_and_fixture_share_the_tiny_checkpoint(tiny_checkpoint):
    result = run("bash", "-c", f"source {SCRIPTS}/lib.sh; tiny_checkpoint", OMNI_ENV_DIR=str(tiny_checkpoint.parent))
    assert Path(result.stdout) == tiny_checkpoint.resolve()


def refused(tmp_path, *options):
    """The one sentence with which serve.sh ends."""
    command = [SCRIPTS / "serve.sh", "--host", "127.0.0.1", *port_options(free_ports()), *options]
    result = run(*command, TMPDIR=str(tmp_path))
    assert result.returncode == 1
    assert not list(tmp_path.iterdir())
    (sentence,) = result.stderr.strip().splitlines()
    return sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--modell", "x"], "There is no option --modell"),
        (["--model"], "--model needs a value"),
        (["--model", "/nowhere/at/all"], "neither a directory nor a hub id"),
        (["--model", SCRIPTS], "holds no config.json"),
        (["--mps"], "--mps needs nvidia-cuda-mps-control"),
        (["--grpc-port", "70000"], "--grpc-port is '70000'"),
        (["--grpc-port", "61234", "--http-port", "61234"], "--grpc-port is 61234, which another port has too"),
        (["--openai-port", "70000"], "--openai-port is '70000'"),
        (["--grpc-port", "61234", "--openai-port", "61234"], "--grpc-port is 61234, which another port has too"),
    ],
)
def test_serve_refuses(options, sentence, tmp_path):
    assert sentence in refused(tmp_path, *options)


@pytest.mark.parametrize("name", ["serve.sh", "demo.sh"])
@pytest.mark.parametrize(
    ("directory", "sentence"),
    [
        ("missing", "which is no directory to write to: make it or set TMPDIR"),
        ("x" * 60, "sockets' names too long: set TMPDIR to a shorter one"),
        ("a b", "no path with white space or characters that a shell interprets: set TMPDIR"),
        ("a(b", "no path with white space or characters that a shell interprets: set TMPDIR"),
    ],
)
def test_a_temporary_directory_that_cannot_be_used_is_refused(name, directory, sentence, tmp_path):
    if directory != "missing":
        (tmp_path / directory).mkdir()
    result = run(SCRIPTS / name, TMPDIR=str(tmp_path / directory))
    (line,) = result.stderr.strip().splitlines()
    assert result.returncode == 1 and sentence in line


def test_serve_names_the_busy_port(tmp_path):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port} for metrics" in refused(tmp_path, "--metrics-port", port)


def test_serve_shows_why_a_deploy_configuration_is_refused(tiny_checkpoint, tmp_path):
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("stage_args: nonsense\n")
    command = [SCRIPTS / "serve.sh", "--model", tiny_checkpoint, *port_options(free_ports()), "--deploy-config", deploy]
    result = run(*command, TMPDIR=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1].endswith("is no deploy configuration, for the reason above.")
    assert [path.name for path in tmp_path.iterdir()] == ["deploy.yaml"]


@pytest.fixture
def noting_triton(tiny_checkpoint, tmp_path):
    """Run serve.sh with a tritonserver on PATH that only notes its command line and environment, and return both."""

    def serve(deploy, options=(), **environment):
        path, played, noted = tmp_path / "deploy.yaml", tmp_path / "tritonserver", tmp_path / "noted"
        path.write_text(deploy)
        played.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{noted}\nenv >{noted}.env\nexit 7\n')
        played.chmod(0o755)
        command = [SCRIPTS / "serve.sh", "--model", tiny_checkpoint, "--deploy-config", path, "--host", "127.0.0.1"]
        command += [*port_options(free_ports()), "--", *options]
        environment |= {"TMPDIR": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        result = run(*command, **environment)
        assert result.returncode == 7, result.stderr
        return noted.read_text().splitlines(), (tmp_path / "noted.env").read_text().splitlines()

    return serve


@pytest.mark.parametrize(
    ("drain_s", "options", "seconds"),
    [(3, [], ["20"]), (60, [], ["75"]), (60, ["--exit-timeout-secs", "90"], ["90", "90"])],
)
def test_triton_is_given_longer_to_stop_than_requests_may_go_on(noting_triton, drain_s, options, seconds):
    words, _ = noting_triton(f"base_config: cpu\ndrain_timeout_s: {drain_s}\n", options)
    assert [words[at + 1] for at, word in enumerate(words) if word == "--exit-timeout-secs"] == seconds


@pytest.mark.parametrize(("given", "threshold"), [({}, "131072"), ({"MALLOC_MMAP_THRESHOLD_": "65536"}, "65536")])
def test_triton_returns_large_pieces_of_memory(noting_triton, given, threshold):
    _, environment = noting_triton("base_config: cpu\n", **given)
    assert f"MALLOC_MMAP_THRESHOLD_={threshold}" in environment


def test_a_start_that_triton_lost_is_made_again(tiny_checkpoint, tmp_path):
    played, starts = tmp_path / "tritonserver", tmp_path / "starts"
    played.write_text(f'#!/bin/sh\necho "$OMNI_RUNTIME_DIR" >>{starts}\ntouch "$OMNI_RUNTIME_DIR/start.lost"\nexit 9\n')
    played.chmod(0o755)
    command = [SCRIPTS / "serve.sh", "--model", tiny_checkpoint, "--host", "127.0.0.1", *port_options(free_ports())]
    result = run(*command, TMPDIR=str(tmp_path), PATH=f"{tmp_path}:{os.environ['PATH']}")
    directories = starts.read_text().split()
    assert result.returncode == 9 and len(set(directories)) == 3
    assert not any(os.path.exists(directory) for directory in directories)


@pytest.mark.parametrize(("served", "times"), [(False, 3), (True, 1)])
def test_a_server_that_aborts_before_it_served_is_started_again(tiny_checkpoint, tmp_path, served, times):
    played, starts = tmp_path / "tritonserver", tmp_path / "starts"
    done = 'touch "$OMNI_RUNTIME_DIR/start.done"\n' if served else ""
    played.write_text(f"#!/bin/sh\necho start >>{starts}\n{done}kill -ABRT $$\n")
    played.chmod(0o755)
    command = [SCRIPTS / "serve.sh", "--model", tiny_checkpoint, "--host", "127.0.0.1", *port_options(free_ports())]
    result = run(*command, TMPDIR=str(tmp_path), PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert result.returncode == 134 and len(starts.read_text().split()) == times


class Finished:
    """An environment that is set up, with a tritonserver and an engine interpreter that are played."""

    def __init__(self, directory):
        self.env, self.tmp, played = directory / "env", directory / "tmp", directory / "bin"
        for made in (self.env, self.tmp, played):
            made.mkdir()
        (self.env / "stub").symlink_to(Path(os.environ.get("OMNI_ENV_DIR") or ROOT / ".env").resolve() / "stub")
        make = 'case $1 in *make_tiny_checkpoint.py) umask 077; mkdir -p "$2"; echo {} >"$2/config.json" ;; esac'
        for name, script in (("tritonserver", "exit 7"), ("engine_python", make)):
            (played / name).write_text(f"#!/bin/sh\n{script}\n")
            (played / name).chmod(0o755)
        self.environment = {"OMNI_ENV_DIR": str(self.env), "TMPDIR": str(self.tmp)}
        self.environment |= {"ENGINE_PYTHON": str(played / "engine_python"), "PATH": f"{played}:{os.environ['PATH']}"}
        facts = '"$(python3 -c "import sys; print(sys.version_info[:2], sys.base_prefix)")"'
        stamp = f'write_stamp stub "$(key_of "$ROOT/requirements/stub.txt" {facts})"'
        assert run("bash", "-euc", f"source {SCRIPTS}/lib.sh; {stamp}", **self.environment).returncode == 0

    def serve(self, *before):
        command = [*before, SCRIPTS / "serve.sh", "--host", "127.0.0.1", *port_options(free_ports())]
        return run(*command, **self.environment)

    def give_away(self):
        """Let the environment belong to somebody else. The words to put before a command of ours, which then may read
        and not write there: for root, who may do everything, without those rights."""
        for path in [self.env, *self.env.rglob("*")]:
            if os.geteuid() == 0:
                os.lchown(path, 65534, 65534)
            elif not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o222)
        rights = "-dac_override,-dac_read_search,-fowner"
        return ["setpriv", "--bounding-set", rights, "--inh-caps", rights] if os.geteuid() == 0 else []


def test_a_finished_environment_serves_another_user(tmp_path):
    """Operating, a finished environment used by another user: its lock is only read, its tiny checkpoint readable."""
    finished = Finished(tmp_path)
    assert finished.serve().returncode == 7
    (checkpoint,) = finished.env.glob("tiny-*")
    assert checkpoint.stat().st_mode & 0o055 == 0o055 and (checkpoint / "config.json").stat().st_mode & 0o044 == 0o044
    another = finished.give_away()
    try:
        before = sorted(finished.env.rglob("*"))
        result = finished.serve(*another)
        assert result.returncode == 7, result.stderr
        assert sorted(finished.env.rglob("*")) == before
        (finished.env / "stamps" / "stub").unlink() if another else (finished.env / "stamps").chmod(0)
        result = finished.serve(*another)
        assert result.returncode == 1 and "is not yours to write to: let its owner" in result.stderr.splitlines()[-1]
    finally:
        for path in (finished.env, *finished.env.glob("*/")):
            path.chmod(0o755)


class BareServer:
    """serve.sh with a tritonserver that loads no model: up in a moment."""

    def __init__(self, model, tmp_path, before=frozenset(), host="127.0.0.1", url="127.0.0.1", options=()):
        self.ports, self.url = free_ports(), url
        command = [SCRIPTS / "serve.sh", "--model", model, "--host", host, *port_options(self.ports), *options]
        command += ["--", "--model-control-mode", "explicit"]
        self.process = subprocess.Popen(
            [str(word) for word in command],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self.is_live, PATIENT_S, "the server is live")
        (self.runtime_dir,) = set(tmp_path.glob("qwen3-omni.*")) - before

    def is_live(self):
        assert self.process.poll() is None, f"serve.sh ended with {self.process.returncode}"
        try:
            with triton.InferenceServerClient(f"{self.url}:{self.ports[0]}") as client:
                return client.is_server_live()
        except InferenceServerException:
            return False

    def processes(self):
        """Ids of the processes that have the server's runtime directory in their environment."""
        needle = f"OMNI_RUNTIME_DIR={self.runtime_dir}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if needle in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found


def test_an_end_that_nobody_asked_for_is_a_failure(tiny_checkpoint, tmp_path):
    """Operating, every end that nobody asked for: a tritonserver that stops in order by itself, which ends with 0."""
    server = BareServer(tiny_checkpoint, tmp_path)
    (tritonserver,) = [pid for pid in server.processes() if name_of(pid) == "tritonserver"]
    os.kill(tritonserver, signal.SIGTERM)
    assert server.process.wait(PATIENT_S) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ends", ["serve.sh", "tritonserver", "python"])
def test_openais_api_starts_and_stops_with_the_server(ends, tiny_checkpoint, tmp_path):
    """`--openai-port`: whichever of the three ends, all do, and nothing stays; only an end of the script is orderly."""
    port = free_port()
    server = BareServer(tiny_checkpoint, tmp_path, options=("--openai-port", port))
    wait_until(lambda: answers(f"127.0.0.1:{port}/v1/models"), PATIENT_S, "OpenAI's API answers")
    # The server is bare: no model that could serve.
    assert not answers(f"127.0.0.1:{port}/health")
    named = {name_of(pid): pid for pid in server.processes()} | {"serve.sh": server.process.pid}
    os.kill(named[ends], signal.SIGTERM)
    assert server.process.wait(PATIENT_S) == (0 if ends == "serve.sh" else 1)
    assert not server.processes() and not list(tmp_path.iterdir())


def name_of(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


def ipv6_is_there():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def answers(page):
    try:
        with urllib.request.urlopen(f"http://{page}", timeout=PATIENT_S) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.parametrize(("host", "url"), [("::1", "[::1]"), ("[::1]", "[::1]"), ("localhost", "localhost")])
def test_serve_listens_on_names_and_on_ipv6(tiny_checkpoint, tmp_path, host, url):
    """Operating, `--host ::1` and `[::1]`: all three endpoints listen there; without IPv6 a sentence says so."""
    if ":" in host and not ipv6_is_there():
        assert f"cannot listen on {host}:" in refused(tmp_path, "--host", host)
        return
    server = BareServer(tiny_checkpoint, tmp_path, host=host, url=url)
    try:
        _, http, metrics = server.ports
        for page in (f"{url}:{http}/v2/health/live", f"{url}:{metrics}/metrics"):
            wait_until(lambda page=page: answers(page), PATIENT_S, f"{page} answers")
    finally:
        server.process.terminate()
        assert server.process.wait(PATIENT_S) == 0


def test_a_host_that_is_none_is_refused(tmp_path):
    assert "--host is 'no.such.host.invalid'" in refused(tmp_path, "--host", "no.such.host.invalid")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_leaves_nothing_behind(number, tiny_checkpoint, tmp_path):
    server = BareServer(tiny_checkpoint, tmp_path)
    assert server.processes()
    assert server.runtime_dir.stat().st_mode & 0o777 == 0o700
    server.process.send_signal(number)
    assert server.process.wait(PATIENT_S) == 0
    assert not server.processes()
    assert not list(tmp_path.iterdir())
    assert not list(Path("/dev/shm").glob(f"omni_{server.runtime_dir.suffix[1:]}_*"))


def test_the_next_start_removes_what_killed_servers_left_and_nothing_else(tiny_checkpoint, tmp_path):
    running = BareServer(tiny_checkpoint, tmp_path)
    killed, foreign = tmp_path / "qwen3-omni.Killed", tmp_path / "qwen3-omni.Locked"
    orphans, other = tmp_path / "qwen3-omni.Orphan", tmp_path / "qwen3-omni-demo.abcdef"
    for directory in (killed, foreign, orphans, other):
        directory.mkdir(0o700)
    (killed / "thinker-0-1.calls").touch()
    engine = subprocess.Popen(["sleep", "600"], env=os.environ | {"OMNI_RUNTIME_DIR": str(orphans)})
    held = os.open(foreign, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    second = None
    try:
        second = BareServer(tiny_checkpoint, tmp_path, before=set(tmp_path.iterdir()))
        assert not killed.exists()
        assert all(path.is_dir() for path in (running.runtime_dir, foreign, orphans, other, second.runtime_dir))
    finally:
        os.close(held)
        engine.kill()
        engine.wait()
        for server in (running, second):
            if server is not None:
                server.process.terminate()
                server.process.wait(PATIENT_S)


def test_what_a_killed_script_left_can_be_removed_once_its_server_has_ended(tiny_checkpoint, tmp_path):
    """Operating, files left: also what vLLM's workers on a CPU shared, where no supervisor is left."""
    server = BareServer(tiny_checkpoint, tmp_path)
    server.process.kill()
    server.process.wait(PATIENT_S)
    wait_until(lambda: not server.processes(), PATIENT_S, "the server has ended")
    assert server.runtime_dir.is_dir()
    names = [f"vllm_dist_{uuid.uuid4().hex}" for _ in range(2)]
    shared, of_another = (Path(f"/dev/shm/{name}-tp:0-[0-1]-cpushm_0") for name in names)
    (server.runtime_dir / "thinker-0").mkdir()
    (server.runtime_dir / "thinker-0" / names[0]).touch()
    shared.touch()
    of_another.touch()
    try:
        script = f"source {SCRIPTS}/runtime_dir.sh; remove_dead_runtime_dirs"
        assert run("bash", "-euc", script, TMPDIR=str(tmp_path)).returncode == 0
        assert not list(tmp_path.iterdir())
        assert not shared.exists() and of_another.exists()
    finally:
        shared.unlink(missing_ok=True)
        of_another.unlink()
