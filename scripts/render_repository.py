#!/usr/bin/env python3
"""Write a Triton model repository for a deploy configuration.

`--deploy-config` is a profile's name or a YAML file; without it the default rendering is written: every model with one
instance, for whatever configuration is chosen when the server starts.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from python_backends.config.deploy import DeployError, load_deploy_config  # noqa: E402
from python_backends.config.repository import repository_files, write_repository  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deploy-config", metavar="YAML")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    args = parser.parse_args()
    if args.settings and args.deploy_config is None:
        parser.error("--set needs --deploy-config")
    if args.deploy_config is None:
        write_repository(args.out, repository_files())
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
            print(f"{args.out} is not empty and no rendering of this script: nothing written", file=sys.stderr)
            return 2
        shutil.rmtree(args.out)
    write_repository(args.out, repository_files(config, ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
