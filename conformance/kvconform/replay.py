"""`kvspec replay`: real traffic through the scheduler, checked."""

import typer

app = typer.Typer(no_args_is_help=True, help="Replay real traffic through the scheduler, every answer checked.")
