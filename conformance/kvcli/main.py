"""The command line: its commands, and their exit statuses."""

import signal
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from kvcli import attaching, checking, engines, exporting, matrix, replay, searching, serving, starting
from kvcli.options import flowing
from kvconform import signals
from kvconform.console import BROKEN, CONFORMS, FAULTY, UNUSABLE, complain, shown, written_out
from kvconform.errors import InputError, LoadError
from kvspec import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Check the KV-cache bookkeeping of an inference engine against an executable specification.\n\n"
    "Exit status: 0 conforms, 1 a rule is broken or the implementation failed, 2 the input or the call is wrong, 70 "
    "kvspec itself failed. Interrupted (SIGINT, SIGTERM), a command prints its results so far and exits with 1 or "
    "128 + the signal's number.",
)
_ENGINE, _FINDINGS, _SPECIFICATION = "Check your engine", "Look into findings", "The specification itself"
for _panel, _commands in {
    _ENGINE: (starting.init, checking.check, checking.merge, checking.run, searching.fuzz, serving.serve),
    _FINDINGS: (checking.show, checking.rules, searching.bugs, matrix.matrix),
    _SPECIFICATION: (searching.prove, searching.explore, searching.soak, searching.tiers, checking.schema),
}.items():
    for _function in _commands:
        app.command(rich_help_panel=_panel)(_function)
app.command(context_settings={"allow_extra_args": True}, rich_help_panel=_ENGINE)(attaching.attach)
app.add_typer(engines.app, name="engines", rich_help_panel=_ENGINE)
app.add_typer(replay.app, name="replay", rich_help_panel=_SPECIFICATION)
app.add_typer(exporting.app, name="vectors", rich_help_panel=_SPECIFICATION)

for _group in (app, replay.app, engines.app, exporting.app):
    for _command in _group.registered_commands:
        _command.help = flowing(_command.callback and _command.callback.__doc__)

_INTERRUPTED = 128 + signal.SIGINT
"""Typer's status for an interruption that no command handles. Older versions of Typer exit with it."""

# Typer raises UsageError for any wrong call. It is the base class of the public BadParameter: older versions of Typer
# take it from click, newer ones from their own copy of click.
_USAGE_ERROR: type[typer.BadParameter] = typer.BadParameter.__mro__[2]


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kvspec {__version__}")
        raise typer.Exit


@app.callback()
def _before_a_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """The command `kvspec`."""
    signals.listen()
    try:
        status = run_command(sys.argv[1:])
    except SystemExit as end:
        if not signals.caught():
            raise
        status = _INTERRUPTED if end.code == _INTERRUPTED else BROKEN
    lost = written_out()
    if lost is not None and status != UNUSABLE:
        complain(str(lost))
        status = UNUSABLE
    early = signals.caught() and status in (CONFORMS, _INTERRUPTED)
    sys.exit(128 + signals.caught() if early else status)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status. An error is one line on stderr."""
    with shown():
        return _carried_out(arguments)


def _carried_out(arguments: Sequence[str]) -> int:
    try:
        return app(list(arguments), prog_name="kvspec", standalone_mode=False) or CONFORMS
    except (InputError, LoadError) as error:
        complain(str(error))
    except _USAGE_ERROR as error:
        if message := error.format_message():  # without a command Typer has printed the help, and the message is empty
            complain(message)
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception:
        import traceback

        traceback.print_exc()
        return FAULTY
    return UNUSABLE
