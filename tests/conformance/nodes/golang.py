"""Go programs, built where there is a Go: in the environment or on the path."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "conformance/examples"
GO = shutil.which("go", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]))

needs_go = pytest.mark.skipif(GO is None, reason="there is no go, in the environment or on the path")

_SETTINGS = {
    "CGO_ENABLED": "0",
    "GOCACHE": str(ROOT / "build/go/cache"),  # the standard library is compiled once
    "GOFLAGS": "-buildvcs=false -gcflags=all=-l",  # and sooner without inlining
    "GOPATH": str(ROOT / "build/go/path"),
    "GOPROXY": "off",
    "GOTOOLCHAIN": "local",
}


def go(*arguments: str | Path, cwd: Path) -> str:
    """Run `go`, and return its output."""
    command = [str(GO), *arguments]
    return subprocess.run(
        command, check=True, cwd=cwd, env=os.environ | _SETTINGS, stdout=subprocess.PIPE, text=True
    ).stdout
