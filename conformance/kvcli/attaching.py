"""`kvspec attach`: start an engine with hooks in it."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvconform.console import UNUSABLE, complain


def attach(
    context: typer.Context,
    record: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Record into files beside PATH, one set for each process.")
    ] = None,
    stop: Annotated[
        bool, typer.Option("--halt-on-error", help="Check each event at once, and stop the engine at a finding.")
    ] = False,
) -> None:
    """Start an engine with hooks, if the engine loads no plugins itself: nano-vllm, an older SGLang.

    Without an option another process checks the engine's events while the engine runs. It logs one line for each kind
    of finding, with the path of the report. Everything after -- is the engine's own command line, which starts Python.

        kvspec attach -- python my_server.py

        kvspec attach --record trace.jsonl.zst -- python my_server.py

    Standard error lists the hooked engines. If none was hooked when the engine ends, the exit status is 2.

    vLLM, and SGLang from 0.5.15 on, load kvspec themselves when KVSPEC is set: record:PATH, check or check:halt.
    """
    from kvattach.hooked import note_here
    from kvattach.switch import STARTUP, VARIABLE

    if not context.args:
        raise typer.BadParameter("give the engine's command line after --")
    if record is not None and stop:
        raise typer.BadParameter("--record and --halt-on-error exclude each other")
    said = f"record:{record.absolute()}" if record is not None else "check:halt" if stop else "check"
    paths = [str(STARTUP), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, VARIABLE: said, "PYTHONPATH": os.pathsep.join(paths)}
    note_here(environment)
    sys.stdout.flush()
    try:
        os.execvpe(context.args[0], context.args, environment)
    except OSError as error:
        complain(f"{context.args[0]}: {error.strerror}")
        raise typer.Exit(UNUSABLE) from error
