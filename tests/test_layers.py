"""What may import what. Each package stands on those below it and on nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("code2wav", "talker", "thinker")
# A package and the packages that it may import; of `python_backends` where nothing else is said.
ALLOWED = {
    "config": set(),
    "connectors": {"config"},
    "orchestrator": {"config", "connectors"},
    "engines_common": {"config"},
    "code2wav.kernels": {"engines_common"},
    "code2wav": {"code2wav.kernels", "config", "engines_common"},
    "talker.model": {"config", "engines_common"},
    "talker.kernels": {"engines_common", "talker.model"},
    "talker": {"config", "engines_common", "talker.kernels", "talker.model"},
    "thinker.vllm_patches": {"thinker.media"},
    "thinker.capture": {"thinker.vllm_patches"},
    "thinker.media": {"config"},
    "thinker": {"config", "engines_common", "thinker.capture", "thinker.media", "thinker.vllm_patches"},
    "engine_host": {"config", "connectors", *ENGINES},
    "serving": {"config", "connectors", "orchestrator"},
    "": {"client", "config"},  # the command line
    "client": set(),
}
# The Thinker's core, and what it changes in vLLM.
MAY_IMPORT_VLLM = {
    "thinker.vllm_core",
    "thinker.capture",
    "thinker.vllm_patches",
}


def imports() -> dict[str, set[str]]:
    """By module, all that it imports anywhere; names of ours without `python_backends.`."""
    found = {}
    for path in [*(ROOT / "python_backends").rglob("*.py"), *(ROOT / "client").rglob("*.py")]:
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: imports are absolute here"
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[_short(module)] = {_short(name) for name in names}
    return found


def _short(name: str) -> str:
    return name.removeprefix("python_backends").removeprefix(".")


def package_of(name: str) -> str | None:
    """The package of ours that module or name `name` lies in; None for others'."""
    while name and name not in ALLOWED:
        name = name.rpartition(".")[0]
    return name or None


def ties() -> set[tuple[str, str]]:
    pairs = {(package_of(module) or "", package_of(name)) for module, names in imports().items() for name in names}
    return {(above, below) for above, below in pairs if below not in (None, above)}


def users_of(library: str) -> set[str]:
    return {module for module, names in imports().items() if library in {name.split(".")[0] for name in names}}


def test_each_package_imports_only_what_it_may():
    assert not [(above, below) for above, below in ties() if below not in ALLOWED[above]]


def test_every_package_has_its_row():
    packages = {_short(".".join(path.parent.relative_to(ROOT).parts)) for path in ROOT.glob("python_backends/**/*.py")}
    assert packages <= ALLOWED.keys()


def test_no_two_packages_import_each_other():
    found = ties()
    assert not [pair for pair in found if pair[::-1] in found]


def test_no_engine_imports_another():
    assert not [
        (above, below)
        for above, below in ties()
        if {above.split(".")[0], below.split(".")[0]} <= set(ENGINES) and above.split(".")[0] != below.split(".")[0]
    ]


def test_one_package_alone_knows_triton():
    assert {package_of(module) for module in users_of("triton_python_backend_utils")} == {"serving"}


def test_the_thinkers_core_and_its_patches_alone_import_vllm():
    assert all(module in MAY_IMPORT_VLLM or package_of(module) in MAY_IMPORT_VLLM for module in users_of("vllm"))


def test_each_patch_says_around_which_version_and_when_it_can_go():
    patches = [path for path in (ROOT / "python_backends/thinker/vllm_patches").glob("*.py") if path.stem != "__init__"]
    assert len(patches) >= 4
    for path in patches:
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert re.search(r"^Around: .*\d\.\d+.*No longer needed when ", said, re.MULTILINE), path
