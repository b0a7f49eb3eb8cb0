"""`kvspec run`, `check`, `merge`, `rules` and `schema`: what is checked, by which rules, in which format."""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kvcli.options import BaselineFile, First, Html, Impl, Ray, with_forms
from kvconform.console import Forms, Output
from kvconform.errors import like
from kvconform.findings.wording import show_rule
from kvspec.rules import ALL_RULES, NAMES, rule_of


@with_forms
def run(
    vectors: Annotated[
        list[Path] | None,
        typer.Argument(metavar="VECTOR", help="Files, folders of them, or names of kvspec's own; without any, all."),
    ] = None,
    impl: Impl = "reference",
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each vector with all answers to DIR, as a trace.")
    ] = None,
    baseline: BaselineFile = None,
    word: Annotated[
        str | None,
        typer.Option(
            "-k",
            metavar="WORD",
            help="Only vectors that check the rule of this id, or with this in their name, folder or rules.",
        ),
    ] = None,
    first: First = False,
    card: Annotated[
        Path | None,
        typer.Option(
            "--report-card",
            metavar="FILE",
            help="Fuzz 20,000 operations, too, and write all results on one page: Markdown, or JSON in a .json file.",
        ),
    ] = None,
    *,
    forms: Forms,
) -> None:
    """Replay vectors against an implementation and check every answer.

    A vector is a short list of operations with a description and the rules that it exercises. Each one runs on a
    fresh implementation, up to the first answer that is not allowed. A vector that needs a feature which the
    implementation declares to lack is skipped. Vectors of the memory level ask no implementation: the memory checker
    alone runs them, without --impl.

        kvspec run

        kvspec run --impl my_engine:Adapter

        kvspec run turn.jsonl --record /tmp/traces
    """
    from kvconform.levels.level import Task
    from kvconform.runs.vectors import run_vectors

    raise typer.Exit(run_vectors(Output(), Task(vectors, impl, record, baseline, word, first, card), forms))


@with_forms
def check(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE", help="Trace files; .gz and .zst as they are; '-' is standard input. With --ray URLs, too."
        ),
    ],
    baseline: BaselineFile = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait at the end of the trace for more, until interrupted.")
    ] = False,
    first: First = False,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge", help="The traces are those of several hosts: check them as one ('kvspec merge --help')."
        ),
    ] = False,
    kv_events: Annotated[
        bool,
        typer.Option(
            "--kv-events", help="The files are KV events as a router got them from vLLM or SGLang, and nothing else."
        ),
    ] = False,
    *,
    forms: Forms,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Traces that are checked at once; by default one for each processor."),
    ] = None,
    ray: Ray = None,
) -> None:
    """Check recorded traces of an engine, one operation or memory event a line.

    Reads line by line, in memory that does not grow with the file. A field that the engine left out is not
    checked: it is named, with the rules that need it. Checking goes on after a finding.

        kvspec check engine.jsonl yesterday.jsonl.zst

        kvspec check monday/*.jsonl.zst --jobs 8

        kvspec check --follow running.jsonl --baseline known.toml

        my_engine --trace /dev/stdout | kvspec check -      findings are printed as they come

        kvspec check --merge prefill.jsonl.zst decode.jsonl.zst

        kvspec check --kv-events events.msgpack

        kvspec check --ray auto 's3://traces/2026-11-22/*.jsonl.zst'
    """
    if kv_events and (merge or ray):
        raise typer.BadParameter("--kv-events takes files by themselves, of this machine")
    if merge and (follow or ray or "-" in traces):
        raise typer.BadParameter("--merge takes whole files of this machine")
    if ray is not None:
        if follow or first:
            raise typer.BadParameter("--ray checks each trace to its end")
        from kvconform.fleet.cluster import connected

        with connected(ray) as cluster:
            from kvconform.fleet.checking import check_traces as check_there

            raise typer.Exit(check_there(Output(), cluster, traces, baseline, forms))
    from kvconform.runs.traces import check_traces

    follow = follow or ("-" in traces and not Path("/dev/stdin").is_file())
    if follow and len(traces) > 1:
        raise typer.BadParameter("--follow and '-' take one trace")
    paths = [Path("/dev/stdin" if trace == "-" else trace) for trace in traces]
    jobs = jobs or os.cpu_count() or 1
    how = {"follow": follow, "first": first, "merge": merge, "kv_events": kv_events}
    raise typer.Exit(check_traces(Output(), paths, baseline, forms, jobs=jobs, **how))


def merge(
    parts: Annotated[
        list[Path],
        typer.Argument(metavar="PART", help="Traces of the memory level, one of each host; .gz and .zst too."),
    ],
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The merged trace; .gz and .zst are compressed.")
    ],
) -> None:
    """Merge the traces of several hosts into one, in the order that their messages give.

    Each host (a prefill and a decode server, the ranks of one engine) records a trace of its own. Its header names the
    `host`; without that it is the file's name up to the first dot. The merged trace has every `receive` after its
    `send`, and is checked like any other; clocks of machines have no say. Names are kept apart: holder r1 of host
    decode becomes decode/r1, and in the trace of another host pages of decode's pool kv are those of pool decode/kv.

        kvspec merge prefill.001.jsonl.zst decode.001.jsonl.zst -o merged.jsonl.zst

        kvspec check --merge prefill.001.jsonl.zst decode.001.jsonl.zst
    """
    from kvconform.traces.merging import merge as merge_parts

    events = merge_parts(parts, out)
    Output().print(f"{out}: {events:,} events of {len(parts)} hosts.", highlight=False, markup=False, soft_wrap=True)


def show(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A trace or vector of either level; .gz and .zst too.")
    ],
    line: Annotated[
        int | None, typer.Option(metavar="N", help="What is around line N of the file, and who has what after it.")
    ] = None,
    page: Annotated[
        str | None,
        typer.Option(
            metavar="P",
            help="Only what changes or names this page, up to its first finding; POOL:PAGE if there are pools.",
        ),
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(metavar="R", help="Only what names this request, session or holder; its part of a batch."),
    ] = None,
    html: Html = None,
) -> None:
    """Describe a trace line by line: what happens, and beside it who has which page and row.

    Whether it shows a finding or not. Of a long trace only a part is described: what leads to the first finding, or its
    end. A vector is shown with the answers that the model itself gives.

        kvspec show kvspec-failure.jsonl

        kvspec show engine.jsonl.zst --page 17
    """
    from kvconform.levels.level import Wanted
    from kvconform.runs.showing import show as show_trace

    show_trace(Output(), trace, Wanted(line, page, request), html)


def rules(
    rule: Annotated[
        str | None,
        typer.Argument(
            metavar="RULE", help="One rule by its id, its name or a code: TAIL-1, resume-frees-the-tail, MEM-NAME/free."
        ),
    ] = None,
) -> None:
    """Print the rules: each with its reason, and the document that it comes from.

    kvspec rules TAIL-1
    """
    id = None if rule is None else NAMES.get(rule, rule_of(rule).upper())
    if id is not None and id not in ALL_RULES:
        meant = like(id, ALL_RULES) or like(rule or "", NAMES)
        raise typer.BadParameter(f"no rule {rule!r}; 'kvspec rules' lists them{meant}")
    out = Output()
    for one in ALL_RULES.values() if id is None else (ALL_RULES[id],):
        show_rule(out, one)


class Schema(StrEnum):
    """The format that a schema describes."""

    trace = "trace"
    report = "report"


def schema(
    what: Annotated[
        Schema, typer.Argument(metavar="WHAT", help="trace: a line of a trace or vector. report: what --json prints.")
    ] = Schema.trace,
) -> None:
    """Print a JSON Schema: of each line of a trace or vector, or of what --json prints.

    kvspec schema > kvspec.schema.json

    kvspec schema report
    """
    from kvconform.findings.outcome import schema as report_schema
    from kvconform.traces.schema import schema as format_schema

    printed = format_schema() if what is Schema.trace else report_schema()
    Output().print(json.dumps(printed, indent=2), markup=False, highlight=False, soft_wrap=True)
