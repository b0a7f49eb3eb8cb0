"""`kvspec engines`: releases of real engines that are on the package index."""

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

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
    from kvlab.releases import NotFetched, fetch

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
    from kvlab.releases import ENGINES, cache_folder, folder_of, installed

    releases = [(engine, version) for engine in ENGINES for version in installed(cache, engine)]
    for engine, version in releases:
        Console().print(Text(f"{engine} {version}  {folder_of(version, cache, engine)}"), soft_wrap=True)
    if not releases:
        Console().print(Text(f"There are no releases in {cache or cache_folder()}."), soft_wrap=True)
