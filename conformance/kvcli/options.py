"""Options that several commands have."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from kvconform.console import Forms

_EXAMPLE = "    ", "kvspec "
"""The beginning of an example in a docstring."""


def flowing(docstring: str | None) -> str:
    """A docstring as a command's help: paragraphs that flow, and under a heading the examples, one a line.

    An example is a paragraph of its own that is indented or begins with `kvspec`.
    """
    text = inspect.cleandoc(docstring or "")
    paragraphs = text.split("\n\n")
    examples = [paragraph.strip() for paragraph in paragraphs if paragraph.startswith(_EXAMPLE)]
    prose = [" ".join(paragraph.split()) for paragraph in paragraphs if not paragraph.startswith(_EXAMPLE)]
    if examples:
        prose.append("\n".join(["[bold]Examples:[/bold]", *(f"  {one}" for one in examples)]))
    return "\n\n".join(prose)


Impl = Annotated[
    str, typer.Option(help="Implementation: 'reference', 'cuda', 'module:Class', 'exec:COMMAND' or 'bug:NAME'.")
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Also print the tables of checked rules, and the steps of findings that may follow from others.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result: one line for each level.")]
First = Annotated[bool, typer.Option("--exitfirst", "-x", help="Stop at the first finding.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead ('kvspec schema report').")]
Junit = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write JUnit XML.")]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write an HTML page to step through, in one file.")
]
Sarif = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write SARIF, for annotations on a code host.")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Also write a trace of each finding to DIR, named by its number and rule."),
]
BaselineFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Known findings (TOML): they are counted, but do not fail the check."),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Spread the work over a Ray cluster: 'auto', HOST:PORT, or 'local' for this machine alone.",
    ),
]


def _forms(
    verbose: Verbose = False,
    quiet: Quiet = False,
    as_json: Json = False,
    junit: Junit = None,
    sarif: Sarif = None,
    html: Html = None,
    out: Out = None,
) -> Forms:
    return Forms(verbose, quiet, as_json, junit, sarif, html, out)


def with_forms(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `forms` is filled by options: the forms in which it reports."""
    own, options = inspect.signature(command), inspect.signature(_forms).parameters

    @wraps(command)
    def called(**given: Any) -> None:
        forms = _forms(**{name: given.pop(name) for name in options})
        command(forms=forms, **given)

    parameters: list[inspect.Parameter] = []
    for name, each in own.parameters.items():
        parameters += options.values() if name == "forms" else [each]
    # Typer reads these.
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called
