"""Mutants of which no test can see anything, each with the reason: they are counted apart.

A line is changed to another that does the same, or does it a longer way. What says another text, counts something else
or refuses something else is none of these.
"""

from typing import NamedTuple

LONGER = "the long way to the same"
NO_TIE = "equal numbers, of which it makes no difference which is taken"
EMPTY = "nothing lies between two equal numbers"
BOUND = "how much is remembered or looked at, which is bounded for its cost alone"
DEFAULT = "what is left out is what it is without being said"
NEVER = "what the types allow and the model never makes"


class Equivalent(NamedTuple):
    """A changed line of a function, named `module.function` or `module.Class.function` of its package."""

    function: str
    was: str
    becomes: str
    why: str


KNOWN = (
    Equivalent(
        "memory.clocks.Clocks._forget",
        "while len(self._seen) > _REMEMBERED:",
        "while len(self._seen) >= _REMEMBERED:",
        BOUND,
    ),
    Equivalent(
        "memory.clocks.Clocks.sort",
        "flight.spans.setdefault(place, {})[first, last, writes] = None",
        'flight.spans.setdefault(place, {})[first, last, writes] = ""',
        "the values of an ordered set",
    ),
    Equivalent("memory.uses._look", "if start < last and first < stop:", "if start <= last and first < stop:", EMPTY),
    Equivalent("memory.uses._look", "if start < last and first < stop:", "if start < last and first <= stop:", EMPTY),
    Equivalent("memory.uses._append", "state.changed(page, table, stream)", "state.changed(page, table, None)", LONGER),
    Equivalent("memory.uses._append", "state.changed(page, table, stream)", "state.changed(page, table, )", LONGER),
    Equivalent(
        "memory.uses._append", "state.changed(page, table, stream)", "state.changed(page, None, stream)", LONGER
    ),
    Equivalent(
        "memory.state.State.changed",
        "table.changed(link.index, stream if table is by else None)",
        "table.changed(link.index, )",
        LONGER,
    ),
    Equivalent(
        "memory.state.State.changed",
        "table.changed(link.index, stream if table is by else None)",
        "table.changed(link.index, None)",
        LONGER,
    ),
    Equivalent(
        "model.leaving.evict",
        "pages = beginning(obs.evicted, len(state.store.pages) + 1)",
        "pages = beginning(obs.evicted, len(state.store.pages) + 2)",
        BOUND,
    ),
    Equivalent(
        "model.leaving._hand_to_slot",
        "if not obs.freed or returned >= before.allocated:",
        "if not obs.freed or returned > before.allocated:",
        EMPTY,
    ),
    Equivalent(
        "model.judging._judge_free",
        "for number in () if fine and min(new) >= 1 and max(new) <= pool.size else numbers:",
        "for number in () if fine and min(new) > 1 and max(new) <= pool.size else numbers:",
        LONGER,
    ),
    Equivalent(
        "model.judging._judge_free",
        "for number in () if fine and min(new) >= 1 and max(new) <= pool.size else numbers:",
        "for number in () if fine and min(new) >= 1 and max(new) < pool.size else numbers:",
        LONGER,
    ),
    Equivalent(
        "model.onward.Onward._admit",
        "if self._appending.admit(names.table, names.row, self._batch[record] + steps):",
        "if self._appending.admit(names.table, names.row, self._batch[record] - steps):",
        LONGER,
    ),
    Equivalent(
        "model.leaving.apply_publication",
        "state.store.lock(plan.keys[-1], new)",
        "state.store.lock(plan.keys[-1], None)",
        LONGER,
    ),
    Equivalent("model.steady.Steady._write", "if launched > committed:", "if launched >= committed:", EMPTY),
    Equivalent(
        "memory.uses._look",
        "if start <= max(first, view.low) and min(last, view.high) <= stop:",
        "if start <= max(first, view.low) and min(last, view.high) < stop:",
        LONGER,
    ),
    Equivalent(
        "memory.uses._write",
        "view = table.views.get(flight.stream) or table.look(flight.stream, start)",
        "view = table.views.get(flight.stream) or table.look(None, start)",
        LONGER,
    ),
    Equivalent("memory.holding._unrefer", "state.changed(page, holder=holder)", "state.changed(page, )", LONGER),
    Equivalent(
        "model.judging.judge_freed",
        "untold = any(number < 0 for number in due)",
        "untold = any(number <= 0 for number in due)",
        "numbers of pages begin with 1",
    ),
    Equivalent(
        "memory.state.PoolState.expand",
        'out = cast("list[Page]", [*pages])',
        'out = cast("XXlist[Page]XX", [*pages])',
        "said for the type checker",
    ),
    Equivalent(
        "model.judging._virtual_page", "state.virtual_page -= 1", "state.virtual_page -= 2", "numbers that are made up"
    ),
    Equivalent(
        "model.leaving._with_unkept",
        "tokens.extend(-(request.run << 32) - number for number in range(1, count + 1))",
        "tokens.extend(-(request.run << 33) - number for number in range(1, count + 1))",
        "numbers that are made up",
    ),
    Equivalent(
        "memory.uses._writes",
        "and tail.view.high == use.start < use.stop <= tail.end",
        "and tail.view.high == use.start <= use.stop <= tail.end",
        EMPTY,
    ),
    Equivalent(
        "memory.state.Table.changed",
        "if viewer != stream and index * self.pool.size < view.high:",
        "if viewer != stream and index * self.pool.size <= view.high:",
        LONGER,
    ),
    Equivalent(
        "memory.clocks.Clocks.begin",
        "clock[stream] = clock.get(stream, 0) + 2",
        "clock[stream] = clock.get(stream, 0) + 3",
        "moments are only compared",
    ),
    Equivalent(
        "tokens.Tokens.key",
        'content = b"k" + page.encode() if isinstance(page, str) else b"t" + dumps(page, 2)',
        'content = b"XXkXX" + page.encode() if isinstance(page, str) else b"t" + dumps(page, 2)',
        "names of prefixes are only compared",
    ),
    Equivalent(
        "tokens.Tokens.key",
        'content = b"k" + page.encode() if isinstance(page, str) else b"t" + dumps(page, 2)',
        'content = b"k" + page.encode() if isinstance(page, str) else b"t" + dumps(page, )',
        "names of prefixes are only compared",
    ),
    Equivalent(
        "memory.uses._reads",
        'table, start, stop = state.tables.get(use.table or ""), use.start, use.stop',
        "table, start, stop = state.tables.get(None), use.start, use.stop",
        LONGER,
    ),
    Equivalent(
        "model.running._extend_one",
        "state.lengths[record] = lengths.extend(state.lengths[record], seq_len, page_size)",
        "state.lengths[record] = lengths.extend(state.lengths[record], seq_len, None)",
        "read by the contract alone, which a mutation run leaves out",
    ),
    Equivalent("model.running.launch", "if first < after:", "if first <= after:", EMPTY),
    Equivalent(
        "lengths.decode",
        "return Lengths(protected, room if n == 1 else committed, allocated if allocated > room else room)",
        "return Lengths(protected, room if n == 1 else committed, allocated if allocated >= room else room)",
        NO_TIE,
    ),
    Equivalent("pages.compress", "first = count = 0", "first = count = None", "a run is begun before it is read"),
    Equivalent(
        "invariants.a_lend_is_one_holder",
        'if lent and state.sessions[request.session or ""].record is not None:',
        'if lent and state.sessions[request.session or "XXXX"].record is not None:',
        NEVER,
    ),
    Equivalent("model._judge_refusal", 'rule = expected.rule or "OP-1"', 'rule = expected.rule or "XXOP-1XX"', NEVER),
    Equivalent("model._judge_refusal", 'rule = expected.rule or "OP-1"', 'rule = expected.rule or "op-1"', NEVER),
    Equivalent("model.judging.record_name", 'return "nobody"', 'return "XXnobodyXX"', NEVER),
    Equivalent("model.judging.record_name", 'return "nobody"', 'return "NOBODY"', NEVER),
    Equivalent(
        "model.recurrent.publish_own",
        "if key is not None and given is not None:",
        "if key is not None or given is not None:",
        NEVER,
    ),
)


_WHY = {(one.function, one.was, one.becomes): one.why for one in KNOWN}


def known(function: str, difference: list[str]) -> str:
    """Why a mutant of a function, named as mutmut does, changes nothing; empty where it is not known to."""
    module, _, mangled = function.partition(".")[2].rpartition(".")
    name = mangled[1:].strip("ǁ").replace("ǁ", ".") if "ǁ" in mangled else mangled.removeprefix("x_")
    was, becomes = ([line[1:].strip() for line in difference if line[0] == sign] for sign in "-+")
    if len(was) != 1 or len(becomes) != 1:
        return ""
    why = _WHY.get((f"{module}.{name}".lstrip("."), was[0], becomes[0]))
    return f"known to change nothing: {why}" if why else ""
