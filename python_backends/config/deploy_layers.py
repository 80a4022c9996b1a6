"""How a deploy configuration is put together: a base file, the file over it, `--set` over that, then the platform's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from python_backends.config.deploy_keys import check_keys
from python_backends.config.schema import SchemaError, keys_of
from python_backends.config.stage_keys import STAGE_KEYS
from python_backends.config.vllm_omni import flattened

PROFILES = Path(__file__).parent / "profiles"
_KEYS_OF_STAGES = {stage_id: tuple(keys_of(cls)) for stage_id, cls in STAGE_KEYS.items()}


class DeployError(ValueError):
    """The deploy YAML is wrong; the message names file, key and what is allowed."""


class OnceLoader(yaml.SafeLoader):
    """PyYAML keeps the last of several values of one key; a person who wrote two would never know."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        names = [item.value for item, _ in node.value if isinstance(item, yaml.ScalarNode) and item.value != "<<"]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"{twice}: is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def profile_names() -> list[str]:
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def find_profile(name: str | Path, beside: Path | None = None) -> Path:
    """The file that `name` means: a profile's name, or a path (relative to `beside`). Raises DeployError."""
    if str(name) in profile_names():
        return PROFILES / f"{name}.yaml"
    path = (beside or Path()) / name
    if not path.is_file():
        raise DeployError(f"{path}: no such file, and no profile of that name; profiles: {', '.join(profile_names())}")
    return path


def read_layers(path: Path, seen: tuple[Path, ...] = ()) -> dict:
    """The mapping in `path`, merged over its `base_config`. Each file is checked alone, so that errors name it."""
    if path.resolve() in seen:
        raise DeployError(f"{path}: base_config: the files refer to each other in a circle")
    try:
        body = yaml.load(path.read_text("utf-8"), OnceLoader)  # a safe loader; stubs have no locale
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DeployError(f"{path}: {error}") from None
    except RecursionError:
        raise DeployError(f"{path}: is nested too deeply") from None
    if not isinstance(body, dict):
        raise DeployError(f"{path}: must be a mapping")
    body = flattened(body, _KEYS_OF_STAGES)
    try:
        keys = check_keys(body)
    except SchemaError as error:
        raise DeployError(f"{path}: {error}") from None
    body.pop("base_config", None)
    if keys.base_config is None:
        return body
    base = read_layers(find_profile(keys.base_config, path.parent), (*seen, path.resolve()))
    return merge(base, body)


def merge(base: dict, over: dict) -> dict:
    """`over` on top of `base`, deep; `stages` are merged by `stage_id`, other lists are replaced."""
    merged = dict(base)
    for name, value in over.items():
        old = merged.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[name] = merge(old, value)
        elif name == "stages" and isinstance(old, list) and isinstance(value, list):
            merged[name] = merge_stages(old, value, add=True)
        else:
            merged[name] = value
    return merged


def merge_stages(base: list[dict], over: list[dict], add: bool) -> list[dict]:
    """Merge by `stage_id`; a stage that `base` lacks is added or left out."""
    merged = {stage["stage_id"]: stage for stage in base}
    for stage in over:
        if stage["stage_id"] in merged:
            merged[stage["stage_id"]] = merge(merged[stage["stage_id"]], stage)
        elif add:
            merged[stage["stage_id"]] = stage
    return list(merged.values())


def apply_platform(raw: dict, platform: str) -> dict:
    """`raw` with the stages of its section for `platform` merged in."""
    section = (raw.get("platforms") or {}).get(platform) or {}
    return raw | {"stages": merge_stages(raw.get("stages") or [], section.get("stages") or [], add=False)}


def apply_settings(raw: dict, settings: list[str]) -> dict:
    """`raw` with `KEY=VALUE` settings merged in; values are YAML, `stages.1.replicas=2` names stage 1.

    Raises DeployError.
    """
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise DeployError(f"--set {setting}: must be KEY=VALUE, such as stages.1.replicas=2")
        try:
            over: Any = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise DeployError(f"--set {setting}: {error}") from None
        parts = name.split(".")
        for part in reversed(parts[2:] if parts[0] == "stages" else parts):
            over = {part: over}
        if parts[0] == "stages":
            if len(parts) < 3 or parts[1] not in ("0", "1", "2"):
                raise DeployError(f"--set {setting}: must be stages.N.KEY=VALUE with N 0, 1 or 2")
            over = {"stages": [{"stage_id": int(parts[1]), **over}]}
        over = flattened(over, _KEYS_OF_STAGES)
        try:
            check_keys(over)
        except SchemaError as error:
            raise DeployError(f"--set {setting}: {error}") from None
        raw = merge(raw, over)
    return raw
