"""`kvspec engines`: releases of real engines that are on the package index."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

app = typer.Typer(
    no_args_is_help=True,
    help="Releases of real engines: fetch, list, drive, inject faults, reproduce known issues.",
    rich_markup_mode="rich",
)


class Level(StrEnum):
    """The level of the specification."""

    request = "request"
    memory = "memory"


_REQUIREMENT = re.compile(r"(lmcache|max|sglang|transformers|vllm)==([0-9][0-9A-Za-z.+!-]*)")

_Cache = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the releases; by default in the user's cache folder.")
]


@app.command()
def install(
    releases: Annotated[
        list[str], typer.Argument(metavar="ENGINE==VERSION", help="lmcache, max, sglang, transformers or vllm.")
    ],
    cache: _Cache = None,
) -> None:
    """Fetch releases with pip: their wheels alone, without dependencies.

    Stubs replace missing dependencies when a release is checked; torch is needed, and for SGLang triton and numpy.

        kvspec engines install sglang==0.5.10 sglang==0.5.11 vllm==0.33.0
    """
    from kvlab.releases import NotFetched, fetch

    versions = []
    for release in releases:
        match = _REQUIREMENT.fullmatch(release)
        if match is None:
            raise typer.BadParameter(
                f"{release!r} is no release: give lmcache, max, sglang, transformers or vllm as ENGINE==VERSION"
            )
        versions.append((match[1], match[2]))
    for engine, version in versions:
        try:
            folder = fetch(version, cache, engine)
        except NotFetched as error:
            raise typer.BadParameter(str(error)) from error
        Console().print(Text(f"{engine} {version} is in {folder}"), soft_wrap=True)


@app.command("list")
def list_releases(cache: _Cache = None) -> None:
    """List the fetched releases.

    kvspec engines list
    """
    from kvlab.releases import ENGINES, cache_folder, folder_of, installed

    releases = [(engine, version) for engine in ENGINES for version in installed(cache, engine)]
    for engine, version in releases:
        Console().print(Text(f"{engine} {version}  {folder_of(version, cache, engine)}"), soft_wrap=True)
    if not releases:
        Console().print(Text(f"There are no releases in {cache or cache_folder()}."), soft_wrap=True)


Engine = Annotated[
    str, typer.Argument(help="vllm, sglang, sglang-jax, mini-sglang, nano-vllm, transformers, lmcache or max.")
]
Release = Annotated[
    str,
    typer.Argument(
        metavar="VERSION|DIR", help="A fetched release ('kvspec engines list'), or the folder of a checkout or wheel."
    ),
]
Runs = Annotated[int, typer.Option(min=1, help="Random runs; for 'inject', at most so many for each fault.")]
WithoutKnown = Annotated[bool, typer.Option("--without-known", help="Apply the fixes of known issues first.")]


@app.command()
def drive(
    engine: Engine,
    release: Release,
    runs: Runs = 50,
    without_known: WithoutKnown = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first run; each further run has the next seed.")] = 0,
    events: Annotated[int | None, typer.Option(min=1, help="Start no further run after so many events.")] = None,
) -> None:
    """Drive an engine's own scheduler on random requests and check each memory event.

    No model runs: the scheduler, its tables and its caches are the release's own, the device is simulated.
    A finding that looks like a known issue is printed with the issue's id. 'kvspec matrix' says whether known issues
    explain all findings.

        kvspec engines drive vllm 0.33.0 --runs 100

        kvspec engines drive sglang 0.5.23 --without-known
    """
    with _quiet(engine, release) as folder:
        from kvlab import trial

        status = trial.drive(
            Console(), trial.trial_of(engine, folder), runs, without_known=without_known, seed=seed, events=events
        )
    raise typer.Exit(status)


@app.command()
def inject(
    engine: Engine,
    release: Release,
    level: Annotated[
        Level, typer.Option(help="memory: hooks look for the faults; request: vectors do.")
    ] = Level.memory,
    runs: Runs = 50,
    without_known: WithoutKnown = False,
    fault: Annotated[str, typer.Option(metavar="NAME", help="Inject this fault alone.")] = "",
) -> None:
    """Inject faults into an engine's own code, one after the other, and print how each is found.

    kvspec engines inject sglang 0.5.23 --level request

    kvspec engines inject sglang 0.5.23 --without-known --fault 'tail not freed'
    """
    with _quiet(engine, release) as folder:
        from kvlab import trial, vector_trial

        if level is Level.request:
            status = vector_trial.inject(Console(), engine, folder, fault)
        else:
            driven = trial.trial_of(engine, folder)
            status = trial.inject(Console(), driven, runs, without_known=without_known, fault=fault)
    raise typer.Exit(status)


@app.command()
def reproduce(
    release: Annotated[str, typer.Argument(metavar="VERSION|DIR", help="A fetched release of vLLM, or its folder.")],
    name: Annotated[str, typer.Argument(help="A known issue; without it, all of them.")] = "",
) -> None:
    """Drive a release of vLLM (no other engine) until each known issue occurs, and print the finding.

    kvspec engines reproduce 0.22.1 freed-in-flight
    """
    with _quiet("vllm", release) as folder:
        from kvlab.vllm.issues import reproduce as until_shown

        status = until_shown(Console(), folder, name)
    raise typer.Exit(status)


@contextmanager
def _quiet(engine: str, release: str) -> Iterator[Path]:
    """The folder of a release, with the engine's own log off; an engine that cannot be had is a wrong call."""
    from kvlab.injection import NotInjected
    from kvlab.releases import folder_of
    from kvlab.stubs import EngineError

    folder = Path(release) if Path(release).is_dir() else folder_of(release, None, engine)
    logging.disable(logging.CRITICAL)
    try:
        if not folder.is_dir():
            raise EngineError(f"there is no release {release} of {engine}, and no such folder ('kvspec engines list')")
        yield folder
    except (EngineError, NotInjected) as error:
        raise typer.BadParameter(str(error)) from error
