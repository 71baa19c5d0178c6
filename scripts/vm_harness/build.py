"""The programs and tests that cargo has built."""

import json
import subprocess

from .image import Failed
from .machine import REPOSITORY


def executables(packages, narrow):
    """The programs and tests of packages, as cargo builds them: (package, kind, path)."""
    chosen = [word for package in packages for word in ("--package", package)] if narrow else ["--workspace"]
    command = ["cargo", "test", "--no-run", "--offline", "--message-format=json", "--lib", "--bins", "--tests", *chosen]
    built = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = []
    for line in built.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message.get("executable"):
            name = message["package_id"].split("#")[0].rsplit("/", 1)[-1]
            found.append((name, message["target"]["kind"][0], message["profile"]["test"], message["executable"]))
    return found


def command_of_build(narrow):
    built = executables(["pulselet-cli"], narrow)
    programs = [path for name, kind, is_test, path in built if name == "cli" and kind == "bin" and not is_test]
    if not programs:
        raise Failed("cargo has built no pulselet")
    return programs[0]
