"""Sentences that describe operations, their answers, and the facts that the model knows about them."""

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from kvconform.findings.finding import Reference, Sign, numbered, spans
from kvconform.levels.requests.recovery import Recovery
from kvconform.oracle import owner_name, record_name
from kvspec import events
from kvspec.events import Answer, Config, Operation
from kvspec.model.state import WITHHELD, State
from kvspec.pages import Runs, expand
from kvspec.tokens import Element

LONG = 12
"""The most tokens of a request that are listed."""

_WITHHELD = "has been let go, but is still read by a launch in flight"


def memory_in_words(config: Config) -> str:
    """The sizes of a memory in words."""
    tokens = "1 token" if config.page_size == 1 else f"{config.page_size} tokens"
    store = "" if config.prefix_cache else ", without a prefix store"
    if config.sliding_window:
        store += f", a sliding window of {config.sliding_window} with {config.num_window_pages} window pages"
    if config.num_states:
        store += f", {config.num_states} state slots"
    rows = f"{config.num_rows} row{'s'[: config.num_rows != 1]}" if config.num_rows else "no rows"
    pages = f"{config.num_pages} page{'s'[: config.num_pages != 1]}"
    return f"{pages} of {tokens}, {rows}{store}"


def known(
    config: Config, operations: Sequence[tuple[int, Operation[Any]]], disputed: Collection[int] = ()
) -> Iterator[str]:
    """The facts about all that the last operation names and about `disputed` pages, with the lines that made them."""
    recovery, since = Recovery(config), dict[str, tuple[str, int]]()
    for step, (line, op) in enumerate(operations[:-1], start=1):
        recovery.step(msgspec.structs.replace(op))
        now = dict(_facts(recovery.model.state))
        for thing, fact in now.items():
            if thing not in since or since[thing][0] != fact:
                since[thing] = fact, numbered(line, step)
        for thing in since.keys() - now.keys():
            del since[thing]
    _, last = operations[-1]
    for fact, line, pages in _by_fact(since, [*_pages_in(last), *disputed]):
        belong = f"Pages {spans(pages)} belong" if pages[1:] else f"Page {pages[0]} belongs"
        yield f"{belong} to {fact}, since line {line}."
    wanted = {f"row {row}" for row in _rows_in(last)} | _hybrid_things(last.obs)
    wanted.update(thing for thing, (fact, _) in since.items() if fact == _WITHHELD and isinstance(last, events.Report))
    for thing, (fact, line) in sorted(since.items(), key=lambda item: item[1][1]):
        if thing in wanted:
            yield f"{thing.capitalize()} {fact}, since line {line}."


def ledger(
    config: Config, operations: Sequence[tuple[int, Operation[Any]]], pages: Collection[int]
) -> Iterator[Reference]:
    """The history of some pages before the last operation: every operation that changed the owner of one."""
    recovery, was = Recovery(config), dict[int, str]()
    for step, (line, op) in enumerate(operations[:-1], start=1):
        recovery.step(msgspec.structs.replace(op))
        facts = dict(_facts(recovery.model.state))
        now = {page: facts[f"page {page}"] for page in sorted(pages) if f"page {page}" in facts}
        changes: dict[tuple[str, str], list[int]] = {}
        for page in sorted({*was, *now}):
            if was.get(page) != now.get(page):
                changes.setdefault((was.get(page, ""), now.get(page, "")), []).append(page)
        for (before, after), those in changes.items():
            sign: Sign = "+" if not before else ">" if after else "-"
            does = f"given to {after}" if not before else f"passed from {before} to {after}" if after else "freed"
            says = f"page{'s'[: len(those) > 1]} {spans(those)} {does}"
            yield Reference(sign, numbered(line, step), step, str(op.__struct_config__.tag), says, holder=after)
        was = now


def _by_fact(since: dict[str, tuple[str, int]], pages: list[int]) -> list[tuple[str, int, list[int]]]:
    """The pages grouped by fact, and by the line since which it is true."""
    together: dict[tuple[str, int], list[int]] = {}
    for page in sorted(set(pages)):
        if f"page {page}" in since:
            together.setdefault(since[f"page {page}"], []).append(page)
    return [(fact, line, same) for (fact, line), same in together.items()]


def _facts(state: State) -> Iterator[tuple[str, str]]:
    """The facts of a state: thing and fact, in words."""
    for page in state.owner:
        yield f"page {page}", owner_name(state, state.owner[page])
    for window_page, page in state.window_owner.items():
        yield f"window page {window_page}", f"is behind page {page}"
    for slot in state.state_owner:
        yield f"state slot {slot}", f"is that of {owner_name(state, state.state_owner[slot])}"
    for row, record in state.rows.items():
        yield f"row {row}", _WITHHELD if record == WITHHELD else f"is that of {record_name(state, record)}"


def _pages_in(op: Operation[Any]) -> list[int]:
    """The pages that an answer names."""
    match op.obs:
        case events.ExtendAnswer(pages=pages) | events.DecodeAnswer(pages=pages):
            return [page for runs in (pages or {}).values() for page in expand(runs)]
        case events.EvictAnswer(evicted=runs):
            return expand(runs)
    return expand(getattr(op.obs, "freed", None) or ())


def _hybrid_things(obs: object) -> set[str]:
    """The window pages and state slots that an answer names."""
    found: set[str] = set()
    for kind, lists in (
        ("window page", ("window_pages", "window_freed", "window_evicted")),
        ("state slot", ("states", "states_freed", "states_evicted", "state_cached", "state_taken", "state")),
    ):
        for name in lists:
            value = getattr(obs, name, None)
            runs = [run for part in value.values() for run in part] if isinstance(value, dict) else value
            numbers = [runs] if isinstance(runs, int) else expand(runs or ())
            found.update(f"{kind} {number}" for number in numbers)
    return found


def _rows_in(op: Operation[Any]) -> list[int]:
    return list((op.obs.rows or {}).values()) if isinstance(op.obs, events.ExtendAnswer) else []


def sentence(op: Operation[Any]) -> str:
    """One event in words."""
    if op.refused is not None:
        return f"{_asked(op)}, and is refused: {op.refused.reason or op.refused.rule or 'no reason is given'}."
    return f"{_asked(op)}{_answered(op)}."


def part_of(op: Operation[Any], name: str) -> str:
    """One event in words, of a batch only the part of one request."""
    reqs: list[Any] = getattr(op, "reqs", [])
    batch = [*op.sampled] if isinstance(op, events.Complete) else [_name(one) for one in reqs]
    if name not in batch or len(batch) == 1:
        return sentence(op)
    narrowed: dict[str, Any] = {"obs": op.obs and _only(op.obs, name)}
    if isinstance(op, events.Complete):
        narrowed["tokens"] = {req: token for req, token in op.tokens.items() if req == name}
    else:
        narrowed["reqs"] = [one for one in reqs if _name(one) == name]
    others = _count(len(batch) - 1, "other")
    return f"{sentence(msgspec.structs.replace(op, **narrowed)).removesuffix('.')} (and {others})."


def _name(one: str | tuple[str, int]) -> str:
    """The request of an entry of a batch."""
    return one if isinstance(one, str) else one[0]


def _only(obs: Answer, name: str) -> Answer:
    """The part of a batch's answer that is about one request."""
    parts = {field: getattr(obs, field) for field in obs.__struct_fields__}
    each = {
        field: {req: one for req, one in values.items() if req == name}
        for field, values in parts.items()
        if isinstance(values, dict)
    }
    return msgspec.structs.replace(obs, **each)


def _asked(op: Operation[Any]) -> str:
    """The operation in words, without its answer."""
    match op:
        case events.OpenSession():
            return f"Session {op.session} is opened"
        case events.Submit():
            turn = "" if op.session is None else f", the next turn of session {op.session}"
            return f"Request {op.req} comes, with {_count(len(op.tokens), 'token')}{turn}: {_tokens(op.tokens)}"
        case events.MatchPrefix():
            return f"{op.req} asks how much of it is cached"
        case events.Extend():
            return "A prefill is prepared, of " + _and([f"{req} up to {seq_len}" for req, seq_len in op.reqs])
        case events.Decode():
            step = "a decode step" if op.n == 1 else f"a speculative step of {op.n} positions"
            return f"{step.capitalize()} is prepared for {_and(op.reqs)}"
        case events.Verify():
            kept = "all of them" if len(op.tokens) == op.accepted else f"only {_count(len(op.tokens), 'token')}"
            return f"{_count(op.accepted, 'position')} of {op.req} are accepted; it keeps {kept}"
        case events.Launch():
            return f"Launch {op.launch} goes to the device, with {_and(op.reqs)}"
        case events.Complete():
            brings = f"brings a token for {_and(list(op.sampled))}" if op.sampled else "brings no token"
            return f"Launch {op.launch} completes and {brings}"
        case events.CacheUnfinished():
            return f"{op.req} publishes what it has prefilled" + (", with more of its prompt to come" * op.chunked)
        case events.Finish():
            return f"{op.req} is finished"
        case events.Retract():
            return f"{op.req} is retracted and waits again"
        case events.Abort():
            return f"{op.req} is aborted"
        case events.CloseSession():
            return f"Session {op.session} is closed"
        case events.Preempt():
            return f"The memory of idle session {op.session} is taken away"
        case events.SwaEvict():
            return f"{op.req} gives back the window that it has left behind"
        case events.TakeState():
            return f"{op.req} takes a state slot before it has a row"
        case events.FreeState():
            return f"{op.req} gives its state slot back"
        case events.Evict():
            wanted = (_count(op.n, "page"), _count(op.window, "window page"), _count(op.states, "state"))
            asked = [text for text, count in zip(wanted, (op.n, op.window, op.states), strict=True) if count]
            of_it = f"{_and(asked)} of the prefix store are" if asked else "Nothing of the prefix store is"
            return f"{of_it} to be evicted"
        case events.Report():
            return f"The figures are asked for ({op.mode})"
    return "A look at the whole state"


def _answered(op: Operation[Any]) -> str:
    """The answer of the implementation in words."""
    return _of_pages(op) + _of_hybrid_pools(op.obs)


def _of_hybrid_pools(obs: object) -> str:
    """The window pages and state slots of an answer in words."""
    said = []
    for req, runs in (getattr(obs, "window_pages", None) or {}).items():
        said.append(f"; behind them {req} gets {_some('window page', runs)}" if runs else "")
    given = getattr(obs, "states", None)
    for req, runs in given.items() if isinstance(obs, events.ExtendAnswer) and given else ():
        said.append(f"; {req} gets {_some('state slot', runs)}" if runs else "")
    for name, text in _HYBRID.items():
        value = getattr(obs, name, None)
        if value is not None and value != []:
            said.append(text.format(value if isinstance(value, int) else spans(expand(value))))
    return "".join(said)


_HYBRID = {
    "evicted_len": ": its window begins at position {} or later",
    "window_freed": "; window pages {} go back",
    "states_freed": "; state slots {} go back",
    "window_evicted": "; window pages {} leave the store",
    "states_evicted": "; state slots {} leave the store",
    "state_cached": "; the store takes state slot {}",
    "state_taken": "; state slot {} is taken for it",
    "state": ": slot {}",
}
"""The words for the answer fields that only hybrid pools have."""


def _of_pages(op: Operation[Any]) -> str:
    match op.obs:
        case events.MatchAnswer(prefix_len=prefix_len, protected_len=protected_len, freed=freed):
            matched = "" if prefix_len is None else f": {prefix_len}"
            owned = "" if protected_len is None else f", of which the prefix store owns {protected_len}"
            return f"{matched}{owned}{_freed(freed)}"
        case events.ExtendAnswer(rows=rows, pages=pages):
            parts = []
            for req in dict.fromkeys([*(rows or {}), *(pages or {})]):
                row = [f"has row {rows[req]}"] if rows and req in rows else []
                gets = [f"gets {_some('page', pages[req])}"] if pages and pages.get(req) else []
                parts += [f"{req} {' and '.join(row + gets)}"] if row + gets else []
            return f": {'; '.join(parts)}" if parts else ""
        case events.DecodeAnswer(pages=pages):
            given = [f"; {req} gets {_some('page', runs)}" for req, runs in (pages or {}).items()]
            return "".join(given) or (", in the pages that are there" if pages is not None else "")
        case events.PublishAnswer(protected_len=protected_len, freed=freed):
            owned = "" if protected_len is None else f"; the prefix store owns {protected_len} of its tokens now"
            return f"{owned}{_freed(freed)}"
        case events.ReleaseAnswer(freed=freed):
            return _freed(freed) or ("; nothing is freed" if freed is not None else "")
        case events.EvictAnswer(evicted=evicted):
            return f": {_some('page', evicted)} {_verb('leave', evicted)} it" if evicted else ": none leaves"
        case events.Figures():
            figures = msgspec.to_builtins(op.obs)
            return f": {', '.join(f'{name} {value}' for name, value in figures.items())}" if figures else ""
        case events.SnapshotAnswer(requests=requests, sessions=sessions):
            held = {**(requests or {}), **(sessions or {})}
            parts = [f"{name} {_holds(view)}" for name, view in held.items()]
            none = "" if requests is None and sessions is None else ": no row is held"
            return f": {'; '.join(parts)}" if parts else none
    return ""


def _holds(view: events.HolderView) -> str:
    figures = (
        ("has row", view.row),
        ("protected", view.protected_len),
        ("committed", view.committed_len),
        ("allocated", view.allocated_len),
    )
    return ", ".join(f"{what} {value}" for what, value in figures if value is not None) or "holds memory"


def _freed(runs: Runs | None) -> str:
    return f"; {_some('page', runs)} {_verb('go', runs)} back to the free pages" if runs else ""


def _some(noun: str, runs: Runs) -> str:
    """`page 3`, or `pages 3..5`."""
    numbers = expand(runs)
    return f"{noun}{'s'[: len(numbers) != 1]} {spans(numbers)}"


def _verb(verb: str, runs: Runs) -> str:
    """The verb for one or for several."""
    return verb if len(expand(runs)) != 1 else {"go": "goes"}.get(verb, f"{verb}s")


def _and(names: list[str]) -> str:
    return " and ".join(([", ".join(names[:-1])] if names[1:] else []) + names[-1:])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _tokens(tokens: Sequence[Element]) -> str:
    """Tokens in words; a run of equal tokens is counted."""
    runs = [(token, len(list(same))) for token, same in groupby(tokens)]
    spans = [str(token) if count == 1 else f"{count} times {token}" for token, count in runs]
    return ", ".join(spans if len(spans) <= LONG else [*spans[: LONG - 2], "...", spans[-1]])
