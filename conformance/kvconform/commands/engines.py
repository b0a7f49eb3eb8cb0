"""`kvspec engines` and `kvspec matrix`: releases of real engines, and which rules each breaks."""

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from kvconform.console import BROKEN, CONFORMS

app = typer.Typer(
    no_args_is_help=True, help="Releases of real engines: fetch them, and list what is there.", rich_markup_mode="rich"
)

_REQUIREMENT = re.compile(r"(sglang|vllm)==([0-9][0-9A-Za-z.+!-]*)")

_Cache = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where releases are kept; by default in the user's cache folder.")
]


@app.command()
def install(
    releases: Annotated[list[str], typer.Argument(metavar="ENGINE==VERSION", help="Releases: sglang or vllm.")],
    cache: _Cache = None,
) -> None:
    """Fetch releases with pip: their wheels alone, without what they depend on.

    What is missing is stood in for when a release is checked; torch is needed, and for SGLang triton and numpy.

        kvspec engines install sglang==0.5.10 sglang==0.5.11 vllm==0.33.0
    """
    from kvconform.engines.releases import NotFetched, fetch

    versions = []
    for release in releases:
        match = _REQUIREMENT.fullmatch(release)
        if match is None:
            raise typer.BadParameter(f"{release!r} is no release: give sglang==VERSION or vllm==VERSION")
        versions.append((match[1], match[2]))
    for engine, version in versions:
        try:
            folder = fetch(version, cache, engine)
        except NotFetched as error:
            raise typer.BadParameter(str(error)) from error
        Console().print(Text(f"{engine} {version} is in {folder}"), soft_wrap=True)


@app.command("list")
def list_releases(cache: _Cache = None) -> None:
    """List the releases that are there.

    kvspec engines list
    """
    from kvconform.engines.releases import ENGINES, cache_folder, folder_of, installed

    releases = [(engine, version) for engine in ENGINES for version in installed(cache, engine)]
    for engine, version in releases:
        Console().print(Text(f"{engine} {version}  {folder_of(version, cache, engine)}"), soft_wrap=True)
    if not releases:
        Console().print(Text(f"There are no releases in {cache or cache_folder()}."), soft_wrap=True)


def matrix(
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="The engine; 'sglang' is the one that is known.")],
    releases: Annotated[
        list[str], typer.Argument(metavar="VERSION", help="Releases; 'installed' is the one beside kvspec.")
    ],
    seconds: Annotated[float, typer.Option(min=0, help="How long to walk at random through each release.")] = 20.0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same walks.")] = 0,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write the shortest trace of each finding, and its story.")
    ] = Path("matrix"),
    cache: Annotated[Path | None, typer.Option(metavar="DIR", help="Where releases are kept.")] = None,
) -> None:
    """Check releases of a real engine, and print one table: rule by release.

    Each release runs in a process of its own: all vectors that it supports, then random walks. A release that is not
    there yet is fetched, as 'kvspec engines install' does. For each finding the shortest trace is written to DIR,
    and beside it a story: what happened, why, and where in the engine.

    Exit status: 0 if every finding is explained, 1 if one is not.

        kvspec matrix sglang 0.5.8.post1 0.5.10 0.5.11
    """
    from kvconform.engines.matrix.check import NotChecked, check_releases
    from kvconform.engines.matrix.table import show_matrix

    if engine != "sglang":
        raise typer.BadParameter(f"no engine {engine!r}; 'sglang' is the one that is known")
    try:
        reports = check_releases(releases, seconds, seed, out, cache)
    except NotChecked as error:
        raise typer.BadParameter(str(error)) from error
    # A release's column must not be cut off; a terminal that is narrower wraps the lines.
    console = Console(width=max(Console().width, 24 + 9 * len(reports)))
    show_matrix(console, reports)
    console.print(Text(f"The shortest traces and their stories are in {out}."), soft_wrap=True)
    all_explained = all(found.explanation is not None for report in reports for found in report.found)
    raise typer.Exit(CONFORMS if all_explained else BROKEN)
