"""A report, or one trace, as a self-contained HTML page."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

from kvconform.findings.finding import Finding, Moment, Trace, in_words
from kvconform.findings.outcome import Report
from kvconform.findings.text import answer, value
from kvconform.findings.timeline import drawn
from kvconform.findings.wording import OF_SGLANG_JAX

MOST = 200
"""The most events of a trace that are drawn: the last ones."""
_BLANK = re.compile(r"{{(\w+)}}")
_PULL = re.compile(r"(?:SGLang|sglang-jax) pull request (\d+)")

_PLURAL = {"conforms": "conform", "fails": "fail"}


def page_of_report(report: Report) -> str:
    """The report of a command: each finding in full, then the rules, then all cases."""
    verdicts = Counter(case.verdict for case in report.cases)
    counts = [f"{len(report.findings)} finding{'s'[: len(report.findings) != 1]}"]
    counts += [
        f"{count} {_PLURAL.get(verdict, verdict) if count > 1 else verdict}" for verdict, count in verdicts.items()
    ]
    summary = f"{', '.join(counts)}. kvspec {report.version}."
    title = f"kvspec {report.command}: {report.subject}"
    if report.findings:
        title = f"{report.findings[0].title}: {report.subject}"
    return _page(title, summary, "".join(map(_finding, report.findings)), _rules(report.findings), _cases(report))


def page_of_trace(title: str, summary: str, trace: Trace) -> str:
    """A trace, with or without a finding."""
    return _page(title, summary, f"<article>{_timeline(trace)}</article>", "", "")


def _page(title: str, summary: str, findings: str, rules: str, cases: str) -> str:
    parts = {"title": escape(title), "summary": escape(summary), "findings": findings, "rules": rules, "cases": cases}
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return _BLANK.sub(lambda blank: parts[blank[1]], template)


def _finding(finding: Finding) -> str:
    place = finding.place
    during = f", {place.during}" if place.operation else ""
    met = f"{place}{during}" + (f", {finding.count:,} times" if finding.count > 1 else "")
    parts = [f"<article><h2>{escape(finding.title)}</h2>", f'<p class="what">{escape(finding.what)}</p>']
    parts.append(f'<p class="soft">Met at {escape(met)}</p>')
    if finding.ledger:
        entries = "".join(f"<li>{escape(line)}</li>" for line in in_words(finding.ledger))
        sequences = f'<p class="soft">{escape(finding.sequences)}</p>' if finding.sequences else ""
        parts.append(f'<ul class="ledger">{entries}</ul>{sequences}')
    if finding.also:
        parts.append(f'<p class="soft">The same at {escape(", ".join(map(str, finding.also)))}</p>')
    if finding.follows:
        parts.append(f"<p>{escape(finding.follows)}</p>")
    if finding.compared:
        pairs = (("expected", finding.expected), ("observed", finding.observed))
        values = (f'<div class="{name}"><b>{name}</b><code>{escape(value(one))}</code></div>' for name, one in pairs)
        parts.append(f'<div class="pair">{"".join(values)}</div>')
    if finding.rule is not None:
        identity = escape(finding.rule.id)
        parts.append(f'<p><a href="#{identity}">{identity}</a>: {escape(finding.rule.statement)}</p>')
    if finding.note:
        parts.append(f"<h3>{escape(finding.note)} In a memory of {escape(finding.trace.memory)}.</h3>")
    parts.append(_timeline(finding.trace))
    facts = [("state", one) for one in finding.before] + [("history", one) for one in finding.known]
    facts += [("raised at", one) for one in finding.raised]
    listed = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts)
    return "".join([*parts, f"<dl>{listed}</dl>" if facts else "", "</article>"])


def _timeline(trace: Trace) -> str:
    moments = trace.moments[-MOST:]
    if not moments:
        return '<script type="application/json">[]</script>'
    holders = dict.fromkeys(name for moment in moments for name in moment.about)
    chips = "".join(f'<button aria-pressed="false">{escape(name)}</button>' for name in holders)
    before = moments[0].step - 1
    return "".join(
        [
            '<div class="bar"><button class="back" title="arrow up">&#9650;</button>',
            '<button class="on" title="arrow down">&#9660;</button><span class="where soft"></span>',
            f'<span class="soft">show only</span><span class="holders">{chips}</span></div>' if holders else "</div>",
            f'<p class="soft">{before:,} events before these are not drawn.</p>' if before else "",
            drawn(trace, MOST, fold=True),
            '<div class="now-step"></div>',
            f'<script type="application/json">{_steps(moments)}</script>',
        ]
    )


def _steps(moments: Sequence[Moment]) -> str:
    """The details of each step as JSON. The page shows them when the step is selected."""
    details = [
        {
            "line": moment.number,
            "event": value(moment.event),
            "answer": "" if moment.answer is None and moment.refused is None else answer(moment),
            "breaks": moment.breaks,
        }
        for moment in moments
    ]
    # No text may end the script.
    return json.dumps(details, ensure_ascii=False).replace("<", "\\u003c")


def _rules(findings: Sequence[Finding]) -> str:
    rules = {finding.rule.id: finding.rule for finding in findings if finding.rule is not None}
    if not rules:
        return ""
    listed = "".join(
        f'<dt id="{escape(rule.id)}">{escape(rule.id)}</dt><dd>{escape(rule.statement)}<br>'
        f'<span class="soft">{escape(rule.reason)} Origin: {_linked(rule.origin)}</span></dd>'
        for rule in rules.values()
    )
    return f"<h3>Rules</h3><dl>{listed}</dl>"


def _linked(origin: str) -> str:
    """Pull requests as links."""

    def link(found: re.Match[str]) -> str:
        repository = "sglang-jax" if found[1] in OF_SGLANG_JAX else "sglang"
        return f'<a href="https://github.com/sgl-project/{repository}/pull/{found[1]}">{found[0]}</a>'

    return _PULL.sub(link, escape(origin))


def _cases(report: Report) -> str:
    def row() -> Iterator[str]:
        for case in sorted(report.cases, key=lambda case: case.verdict == "conforms"):
            kind, cells = case.verdict.replace(" ", "-"), (case.name, case.verdict, case.reason)
            yield f'<tr class="{kind}">{"".join(f"<td>{escape(one)}</td>" for one in cells)}</tr>'

    if not report.cases:
        return ""
    table = f'<table class="cases">{"".join(row())}</table>'
    return f"<details><summary>Cases: {len(report.cases)}</summary>{table}</details>"
