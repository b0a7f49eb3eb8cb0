"""`kvspec serve`: a real server of an engine on the CPU, with kvspec on."""

import re
import tempfile
from pathlib import Path
from typing import Annotated

import typer


def serve(
    release: Annotated[
        str,
        typer.Argument(
            metavar="ENGINE==VERSION", help="sglang, vllm or transformers with a version; sglang-jax without one."
        ),
    ],
    minutes: Annotated[float, typer.Option(min=0.05, help="Minutes of traffic.")] = 1.0,
    answers: Annotated[int, typer.Option(min=0, help="Go on past --minutes until so many requests are answered.")] = 0,
    clients: Annotated[int, typer.Option(min=1, max=256, help="Clients that send requests at the same time.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="Seed for the server's configuration and the requests.")] = 0,
    python: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A Python with the engine installed; by default kvspec makes an environment."
        ),
    ] = None,
    checkout: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The checkout of an engine that has no releases: sglang-jax.")
    ] = None,
    fault: Annotated[
        str,
        typer.Option(metavar="NAME", help="Inject a fault into the engine first ('kvspec engines inject' names them)."),
    ] = "",
    without_known: Annotated[
        bool, typer.Option("--without-known", help="Apply the fixes of known issues first (not vLLM's).")
    ] = False,
    host_cache: Annotated[bool, typer.Option("--host-cache", help="SGLang, vLLM: a cache on the host, too.")] = False,
    windows: Annotated[
        bool, typer.Option("--windows", help="SGLang, vLLM: one of the model's two layers has a sliding window.")
    ] = False,
    states: Annotated[
        bool, typer.Option("--states", help="SGLang: one of the model's two layers has a recurrent state.")
    ] = False,
    cuda: Annotated[bool, typer.Option("--cuda", help="SGLang: on a GPU, with the kernels of --python.")] = False,
    connector: Annotated[
        str, typer.Option(metavar="NAME", help="vLLM with --host-cache: its connector, or OffloadingConnector.")
    ] = "SimpleCPUOffloadConnector",
    drafts: Annotated[
        str, typer.Option(metavar="DRAFTER", help="A drafter: ngram for SGLang and vLLM; model or eagle for vLLM.")
    ] = "",
    pair: Annotated[bool, typer.Option("--pair", help="vLLM, SGLang: two servers, prefill and decode.")] = False,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep log, recordings and answers in DIR, a new folder.")
    ] = None,
) -> None:
    """Start an engine's own server, send it HTTP traffic, and check its memory events and its tokens.

    It runs on the CPU, or with --cuda on a GPU.

    The model is tiny and generated here; its greedy tokens depend on the content of the KV cache. Each delivered
    token is compared with that of a forward pass over prompt and answer without a cache. The server, its scheduler, its
    caches and its KV tensors are the engine's own. On a CPU stubs stand in for GPU kernels, and are never called.

        kvspec serve sglang==0.5.23 --minutes 2

        kvspec serve sglang==0.5.23 --seed 7 --keep /tmp/served

        kvspec serve vllm==0.32.0 --pair

        kvspec serve sglang-jax --checkout DIR
    """
    from kvconform.console import Output
    from kvlab.serving.environment import NoEnvironment
    from kvlab.serving.report import serve_and_report
    from kvlab.serving.servers import CHECKED_OUT, CONNECTORS, DRAFTERS, NGRAM, SERVERS
    from kvlab.serving.session import Settings

    match = re.fullmatch(r"(sglang-jax)()|(?:(sglang|vllm|transformers)==([0-9][0-9A-Za-z.+!-]*))", release)
    if match is None:
        named = ", ".join(f"{name}==VERSION" for name in SERVERS if name != CHECKED_OUT)
        raise typer.BadParameter(f"{release!r} is no release: give {named}, or {CHECKED_OUT} with --checkout")
    engine, version = match[1] or match[3], match[4] or ""
    if (checkout is None) == (engine == CHECKED_OUT):
        raise typer.BadParameter(f"--checkout names the folder of {CHECKED_OUT}, and of no other engine")
    if host_cache and engine not in ("sglang", "vllm"):
        raise typer.BadParameter("--host-cache is for sglang and vllm alone")
    if states and (engine != "sglang" or host_cache or pair or windows or cuda):
        raise typer.BadParameter("--states is for sglang alone, without --host-cache, --pair, --windows and --cuda")
    if windows and (engine not in ("sglang", "vllm") or (engine == "sglang" and (host_cache or pair))):
        raise typer.BadParameter("--windows is for vllm, and for sglang without --host-cache and --pair")
    if connector not in CONNECTORS or (connector != CONNECTORS[0] and not (host_cache and engine == "vllm")):
        raise typer.BadParameter(f"--connector is {' or '.join(CONNECTORS)}, for vllm with --host-cache")
    if drafts and drafts not in {"vllm": DRAFTERS, "sglang": [NGRAM]}.get(engine, []):
        raise typer.BadParameter(f"--drafts is {' or '.join(DRAFTERS)}, for vllm, or {NGRAM} for sglang")
    if drafts and engine == "sglang" and (windows or states or pair or cuda):
        raise typer.BadParameter("--drafts of sglang is without --windows, --states, --pair and --cuda")
    if drafts not in ("", NGRAM) and windows:
        raise typer.BadParameter(
            f"--drafts {drafts} is without --windows: vLLM wants a drafter with layers of one kind"
        )
    if cuda and (engine != "sglang" or python is None):
        raise typer.BadParameter("--cuda is for sglang alone, with --python")
    if pair and (engine not in ("vllm", "sglang") or host_cache or cuda):
        raise typer.BadParameter("--pair is for vllm and sglang alone, without --host-cache and --cuda")
    if without_known and engine == "vllm":
        raise typer.BadParameter("--without-known is not for vllm, whose fixes are for parts that a drive alone loads")
    if keep is not None and keep.exists():
        raise typer.BadParameter(f"{keep} is there already: give a new folder")
    with tempfile.TemporaryDirectory(prefix="kvspec-serve-") as scratch:
        folder = Path(scratch) if keep is None else keep
        folder.mkdir(parents=True, exist_ok=True)
        settings = Settings(
            seed,
            minutes * 60,
            clients,
            fault,
            host_cache,
            windows,
            states,
            pair,
            cuda,
            connector,
            answers,
            without_known,
            drafts,
        )
        try:
            status = serve_and_report(
                Output(), engine, version, folder.absolute(), python, checkout and checkout.absolute(), settings
            )
        except NoEnvironment as error:
            raise typer.BadParameter(str(error)) from error
    raise typer.Exit(status)
