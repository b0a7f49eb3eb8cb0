"""`kvspec run`, `check`, `merge`, `show`, `rules` and `schema`: vectors and traces, their rules and their format."""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kvcli.options import BaselineFile, First, Html, Impl, Ray, with_forms
from kvconform.console import Forms, Output
from kvconform.errors import like
from kvconform.findings.wording import NAMES, show_rule
from kvspec.rules import ALL_RULES, rule_of


@with_forms
def run(
    vectors: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="VECTOR", help="Vector files, folders of them, or names of kvspec's own; by default all of those."
        ),
    ] = None,
    impl: Impl = "reference",
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each vector to DIR as a trace, with all answers.")
    ] = None,
    baseline: BaselineFile = None,
    word: Annotated[
        str | None,
        typer.Option(
            "-k",
            metavar="WORD",
            help="Run only vectors that check the rule WORD, or have WORD in their name, folder or rules.",
        ),
    ] = None,
    first: First = False,
    card: Annotated[
        Path | None,
        typer.Option(
            "--report-card",
            metavar="FILE",
            help="Also fuzz 20,000 operations, and write all results to FILE: Markdown, or JSON if it ends in .json.",
        ),
    ] = None,
    *,
    forms: Forms,
) -> None:
    """Replay vectors against an implementation and check every answer.

    A vector is a short list of operations with a description and the rules that it exercises. Each one runs on a
    fresh implementation, up to the first answer that is not allowed. A vector is skipped if it needs a feature that the
    implementation declares as lacking. Vectors of the memory level are input of the memory checker and need no
    implementation; with --impl they are left out.

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
            metavar="TRACE", help="Trace files, also .gz and .zst; '-' is standard input. With --ray also URLs."
        ),
    ],
    baseline: BaselineFile = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="At the end of the trace wait for more lines, until interrupted.")
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
            "--kv-events", help="The files hold only KV events, as a router received them from vLLM or SGLang."
        ),
    ] = False,
    *,
    forms: Forms,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", min=1, help="Traces to check at the same time; by default one for each processor."
        ),
    ] = None,
    ray: Ray = None,
) -> None:
    """Check recorded traces of an engine, which have one operation or memory event on each line.

    A trace is read line by line, so the memory needed does not grow with the file. A field that the engine left out is
    not checked; the report names the field and the rules that need it. Checking goes on after a finding.

        kvspec check engine.jsonl yesterday.jsonl.zst

        kvspec check monday/*.jsonl.zst --jobs 8

        kvspec check --follow running.jsonl --baseline known.toml

        my_engine --trace /dev/stdout | kvspec check -      prints findings as they come

        kvspec check --merge prefill.jsonl.zst decode.jsonl.zst

        kvspec check --kv-events events.msgpack

        kvspec check --ray auto 's3://traces/2026-11-22/*.jsonl.zst'
    """
    if kv_events and (merge or ray):
        raise typer.BadParameter("--kv-events takes local files, without --merge and --ray")
    if merge and (follow or ray or "-" in traces):
        raise typer.BadParameter("--merge takes complete local files")
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
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The merged trace, compressed if FILE ends in .gz or .zst."
        ),
    ],
) -> None:
    """Merge the traces of several hosts into one, ordered by the messages between the hosts.

    Each host (a prefill and a decode server, the ranks of one engine) records a trace of its own. The header names the
    `host`; if it does not, the host is the file's name up to the first dot. The merged trace has every `receive` after
    its `send`, and is checked like any other; the machines' clocks are not used. The merged trace prefixes names with
    their host: holder r1 of host decode becomes decode/r1. In another host's trace, decode/kv is decode's pool kv.

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
        int | None, typer.Option(metavar="N", help="The steps around line N of the file, and the holders after it.")
    ] = None,
    page: Annotated[
        str | None,
        typer.Option(
            metavar="P",
            help="Only steps that change or name this page, up to its first finding; with several pools POOL:PAGE.",
        ),
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(
            metavar="R", help="Only steps that name this request, session or holder; of a batch only its part."
        ),
    ] = None,
    html: Html = None,
) -> None:
    """Describe a trace line by line: each step, and beside it the holder of each page and row.

    The trace may conform. A long trace is described only in part: the steps before the first finding, or the end if
    there is none. A vector is shown with the model's answers.

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
        Schema, typer.Argument(metavar="WHAT", help="trace: a line of a trace or vector. report: the output of --json.")
    ] = Schema.trace,
) -> None:
    """Print a JSON Schema, either of a line of a trace or vector, or of the output of --json.

    kvspec schema > kvspec.schema.json

    kvspec schema report
    """
    from kvconform.findings.outcome import schema as report_schema
    from kvconform.traces.schema import schema as format_schema

    printed = format_schema() if what is Schema.trace else report_schema()
    Output().print(json.dumps(printed, indent=2), markup=False, highlight=False, soft_wrap=True)
