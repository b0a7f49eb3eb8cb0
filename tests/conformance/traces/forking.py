"""Carries `kvspec check` out on one file after the other, each in a fork of a process that has imported everything.

    python -m tests.conformance.traces.forking MILD ... < paths

Prints one JSON object a file. A file has what a process has for itself: its processor time, its memory, its end.
"""

import contextlib
import gc
import io
import json
import os
import resource
import sys
import tempfile
from typing import Any

import typer

from kvcli import main as cli

SECONDS = 10
"""Processor time after which a file's process is ended."""
ADDRESSES = 2**30
"""Bytes of addresses that a file's process has."""


def carried_out(arguments: list[str]) -> dict[str, Any]:
    """How a command ended: exit status, what it printed, processor seconds, and its largest size in bytes."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            status = 71
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
                resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
                status = cli.run_command(arguments)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(status)
        _, ended, used = os.wait4(child, 0)
        outputs = []
        for stream in (out, err):
            stream.seek(0)
            outputs.append(stream.read(100_000).decode(errors="replace"))
    return {
        "status": os.waitstatus_to_exitcode(ended),
        "out": outputs[0],
        "err": outputs[1],
        "seconds": used.ru_utime + used.ru_stime,
        "bytes": used.ru_maxrss * 1024,
    }


def main(mild: list[str]) -> None:
    """Check each file that is named on standard input; before that the `mild` ones, so that all is imported once."""
    cli.app = typer.main.get_command(cli.app)  # type: ignore[assignment]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for path in mild:
            cli.run_command(["check", path])
    gc.freeze()
    for path in sys.stdin:
        print(json.dumps(carried_out(["check", path.rstrip("\n")])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
