"""`kvspec replay`: real traffic through the scheduler, checked."""

import re
from pathlib import Path
from typing import Annotated

import typer

from kvcli.options import Impl
from kvconform.console import BROKEN

app = typer.Typer(
    no_args_is_help=True, help="Replay real traffic through the reference scheduler, and check every answer."
)


@app.command()
def mooncake(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace of the Mooncake project; .gz and .zst too.")],
    page_size: Annotated[int, typer.Option(help="Tokens in a page; must divide 512, the format's block size.")] = 64,
    num_pages: Annotated[int, typer.Option(help="Pages of the pool.")] = 16_000,
    num_rows: Annotated[int, typer.Option(help="Rows: requests and sessions that hold memory at a time.")] = 256,
    sessions: Annotated[
        bool, typer.Option("--sessions", help="Requests that continue an earlier one are turns of one session.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay at most so many requests.")] = None,
    impl: Impl = "reference",
    no_prefix_cache: Annotated[
        bool, typer.Option("--no-prefix-cache", help="Use the chunk cache, which keeps no prefixes.")
    ] = False,
    sliding_window: Annotated[
        int, typer.Option(min=0, help="Tokens in the window of sliding-window layers; needs --num-window-pages.")
    ] = 0,
    num_window_pages: Annotated[int, typer.Option(min=0, help="Pages of the window pool.")] = 0,
    num_states: Annotated[int, typer.Option(min=0, help="Slots for recurrent states; 0: the model has none.")] = 0,
    max_prefill_tokens: Annotated[int, typer.Option(min=1, help="The most tokens that one launch prefills.")] = 16_384,
    chunked_prefill_size: Annotated[
        int, typer.Option(min=1, help="The most tokens of one request that one launch prefills.")
    ] = 8_192,
    schedule_conservativeness: Annotated[
        float, typer.Option(min=0, help="Scales the room reserved for growth; a lower value retracts more requests.")
    ] = 0.3,
    overlap: Annotated[bool, typer.Option("--overlap", help="Launch k + 1 before launch k is complete.")] = False,
    mixed_chunk: Annotated[bool, typer.Option("--mixed-chunk", help="Prefill and decode in one launch.")] = False,
    drafts: Annotated[int, typer.Option(min=0, help="Speculative decoding: draft tokens in each step.")] = 0,
    retract_interval: Annotated[
        int, typer.Option(min=0, help="Retract a request every so many launches, even if none must be; 0: never.")
    ] = 0,
    record: Annotated[
        Path | None, typer.Option(metavar="TRACE", help="Write all operations and answers, for 'kvspec check'.")
    ] = None,
    snapshot_every: Annotated[
        int, typer.Option(min=0, metavar="N", help="Compare the whole state after every N operations.")
    ] = 0,
    checker: Annotated[
        bool,
        typer.Option("--memory-model", help="Also check the memory events of each operation against the memory model."),
    ] = False,
) -> None:
    """Replay a trace of the Mooncake project.

    Each line is a JSON object: timestamp, input_length, output_length, and the hashes of the prompt's blocks. The
    requests come as fast as they are served.

        kvspec replay mooncake conversation_trace.jsonl --sessions

        kvspec replay mooncake conversation_trace.jsonl --num-pages 8000 --impl my_engine:Adapter
    """
    from kvconform.features import check_supported, needs_of_config, needs_of_steps, under
    from kvconform.implementations import load
    from kvconform.traces.bounds import LARGEST, OutOfRange, check_config
    from kvconform.traffic.mooncake import BLOCK, read
    from kvconform.traffic.replay import CannotRunError, Traffic, replay_and_show
    from kvref.scheduler.policy import SchedulerConfig
    from kvspec.events import Config

    if page_size < 1 or BLOCK % page_size:
        raise typer.BadParameter(f"--page-size {page_size} does not divide the blocks of {BLOCK} tokens")
    for name, value in (("--num-pages", num_pages), ("--num-rows", num_rows)):
        if not 1 <= value <= LARGEST:
            raise typer.BadParameter(f"{name} {value} is not in 1..{LARGEST}")
    memory = Config(
        page_size,
        num_pages,
        num_rows,
        min(num_pages * page_size, LARGEST),
        not no_prefix_cache,
        sliding_window,
        num_window_pages,
        num_states,
    )
    try:
        check_config(memory)
    except OutOfRange as error:
        raise typer.BadParameter(re.sub(r"\b(sliding_window|num_\w+)", _as_option, str(error))) from None
    scheduling = SchedulerConfig(
        max_prefill_tokens=max_prefill_tokens,
        chunked_prefill_size=chunked_prefill_size,
        schedule_conservativeness=schedule_conservativeness,
        overlap=overlap,
        mixed_chunk=mixed_chunk,
        drafts=drafts,
        retract_interval=retract_interval,
    )
    factory = load(impl)
    memory = under(factory, memory)
    needed = needs_of_config(memory) | needs_of_steps(overlap, drafts) | {"page_keys"}
    check_supported(factory, impl, needed | {"sessions"} if sessions else needed)
    traffic = Traffic(file, read(file, limit), memory, scheduling, sessions, checker)
    try:
        conforms = replay_and_show(traffic, factory, impl, record, snapshot_every)
    except CannotRunError as error:
        raise typer.BadParameter(str(error)) from None
    if not conforms:
        raise typer.Exit(BROKEN)


def _as_option(name: re.Match[str]) -> str:
    return "--" + name[0].replace("_", "-")
