"""`kvspec prove` sees what is wrong: each contract fails once, and what is unconfirmed must be declared."""

import io
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rich.console import Console

import kvcheck
import kvspec
from kvconform.proving import prove

pytestmark = pytest.mark.slow
THOROUGH = pytest.mark.thorough

SOURCES = Path(kvspec.__file__).parent

Reported = tuple[bool, str]
Prover = Callable[..., Reported]


@pytest.fixture
def proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prover:
    """Writes modules, `on_trial` or those that are named, and proves the contracts in them."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def run(*sources: str, names: Sequence[str] = ("on_trial",), unconfirmed: dict[str, str] | None = None) -> Reported:
        for name, source in zip(names, sources, strict=True):
            (tmp_path / f"{name}.py").write_text(source)
        out = io.StringIO()
        console = Console(file=out, width=120)
        return prove.prove_contracts(console, (2,), 1, names, unconfirmed or {}), out.getvalue()

    return run


def alone(module: str, function: str) -> str:
    """A module with one function of kvspec and its contract; whatever it needs is imported, its neighbours last."""
    source = (SOURCES / f"{module}.py").read_text()
    match = re.search(rf"((?:^@.*\n(?:^[ )].*\n)*)+^def {function}\((?:.*\n)+?)(?=\n\n\S|\Z)", source, re.MULTILINE)
    assert match is not None
    modules = sorted(prove.MODULES, key=lambda name: name == f"kvspec.{module}")
    return (
        "from kvspec.contracts import ensure, require\n"
        + "".join(f"from {name} import *\n" for name in modules)
        + f"\n{match[1]}"
    )


MISTAKES = {
    "floor instead of ceil": ("pages", "ceil_pages", "-(-length // page_size)", "length // page_size"),
    "the cut page counted again": ("pages", "new_pages", "- ceil_pages(start, page_size)", "- start // page_size"),
    "aligned down": ("pages", "ceil_align", "ceil_pages(length, page_size)", "length // page_size"),
    "aligned up": ("pages", "floor_align", "- length % page_size", "+ -length % page_size"),
    "a slot of another page": ("pages", "slot_index", "page * page_size", "(page + 1) * page_size"),
    "a run too short": ("pages", "expand", "(runs, count(runs))", "(runs, len(runs))"),
    "a run past the beginning": ("pages", "beginning", "numbers[:most]", "numbers"),
    "a run of one": ("pages", "compress", "first if count == 1 else (first, count)", "(first, count)"),
    "all protected": ("lengths", "begin", "Lengths(prefix_len,", "Lengths(seq_len,"),
    "committed left behind": ("lengths", "extend", "seq_len, seq_len)", "lengths.committed, seq_len)"),
    "the protected ones counted": ("lengths", "private_pages", "- lengths.protected // page_size", ""),
    "two left in the middle": ("batch", "broken_rule", "chunking.left > 1", "chunking.left > 2"),
    "a tail from the floor": ("lengths", "tail", "range(ceil_pages(kept, page_size)", "range(kept // page_size"),
    "no clamp to what is committed": ("lengths", "resume", "min(lengths.committed, key_len)", "key_len"),
    "the tail forgotten": ("lengths", "resume", "prefix_len, prefix_len)", "prefix_len, lengths.allocated)"),
    "committed forgotten": ("lengths", "trim", "min(lengths.committed, valid)", "lengths.committed"),
    "a tail kept": ("lengths", "shrink", "min(lengths.allocated, length)", "lengths.allocated"),
    "room given up": ("lengths", "decode", "allocated if allocated > room else room", "room"),
    "drafts not counted": ("lengths", "verify", "lengths.committed + accepted", "lengths.committed + accepted + 1"),
    "a page published in part": ("lengths", "publish", "floor_align(length", "ceil_align(length"),
    "a window that leaves its first position out": ("window", "attended_from", "- window", "- window + 1"),
    "a page that is read in part": ("window", "evictable_until", "floor_align(", "ceil_align("),
    "the cursor forgotten": ("window", "window_held_tokens", "max(lengths.protected, cursor)", "lengths.protected"),
    "the store's sides left behind": ("window", "left_behind", "max(lengths.protected, cursor)", "cursor"),
    "the first borders kept": ("states", "kept_borders", "[-KEPT:]", "[:KEPT]"),
    "a state before what is locked": ("states", "last_state", "protected <= border", "0 <= border"),
    "a row given to another request": ("ownership", "allocate", "return record", "return owner"),
    "a row that was not kept": ("ownership", "reuse", "return record", "return FREE"),
    "a row free under its launch": ("ownership", "withhold", "readers > 0", "readers > 1"),
    "a row withheld for ever": ("ownership", "flush", "readers == 0", "readers < 0"),
    "a page published and kept": ("ownership", "publish", "return STORE", "return record"),
    "a page that is never returned": ("ownership", "release", "return FREE", "return owner"),
    "a record that the slot has, too": ("ownership", "lend", "Lease(0,", "Lease(lease.slot,"),
    "a record that the turn has, too": ("ownership", "save", "lease.turn, 0)", "lease.turn, lease.turn)"),
    "a part of a page not counted": ("lengths", "held_tokens", "ceil_align(", "min(lengths.allocated, "),
}


MISTAKEN = sorted({module for module, _, _, _ in MISTAKES.values()})


@pytest.mark.parametrize("module", [pytest.param(one, marks=THOROUGH if one != "pages" else ()) for one in MISTAKEN])
def test_each_wrong_function_is_refuted(module: str, proved: Prover) -> None:
    """Those of one module together: a process that proves takes as long to start as to refute one."""
    wrong = {}
    for number, (place, function, right, instead) in enumerate(MISTAKES.values()):
        if place == module:
            contract, found, rest = alone(module, function).rpartition(right)
            assert found
            wrong[f"on_trial_{number}:{function}"] = contract + instead + rest
    as_declared, reported = proved(*wrong.values(), names=[name.partition(":")[0] for name in wrong])
    assert not as_declared
    for name in wrong:
        _, _, function = name.partition(":")
        shown = rf"{name} is refuted at page size (?:(?!on_trial)[\s\S])* when calling {function}\(.*\d"
        assert re.search(shown, reported), f"{name} in {reported}"


def test_each_contract_has_failed_once() -> None:
    with_contracts = {
        (path.stem, function)
        for path in SOURCES.glob("*.py")
        for function in re.findall(r"^@ensure(?:.*\n(?!def ))*?.*\ndef (\w+)", path.read_text(), re.MULTILINE)
    }
    assert {(module, function) for module, function, _, _ in MISTAKES.values()} == with_contracts


def test_a_right_function_is_confirmed(proved: Prover) -> None:
    as_declared, reported = proved(alone("lengths", "resume"))
    assert as_declared
    assert "confirmed" in reported and "refuted" not in reported


ENDLESS = """
from kvspec.contracts import ensure

@ensure(lambda numbers, result: result == sum(numbers))
def total(numbers: list[int]) -> int:
    result = 0
    for number in numbers:
        result += number
    return result
"""

TRIVIAL = """
from kvspec.contracts import ensure

@ensure(lambda number, result: result > number)
def total(number: int) -> int:
    return number + 1
"""


def test_what_is_unconfirmed_must_be_declared(proved: Prover, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "SECONDS", 0.5)
    monkeypatch.setattr(prove, "SECONDS_IN_VAIN", 0.5)
    as_declared, reported = proved(ENDLESS)
    assert not as_declared and "on_trial:total is unconfirmed at page size any, which is not declared" in reported
    as_declared, reported = proved(ENDLESS, unconfirmed={"on_trial:total": "for a reason"})
    assert as_declared and "on_trial:total is unconfirmed, as declared: for a reason" in reported


def test_what_is_declared_unconfirmed_must_be(proved: Prover) -> None:
    as_declared, reported = proved(TRIVIAL, unconfirmed={"on_trial:total": "for a reason"})
    assert not as_declared and "declared to be unconfirmed, but is not" in reported


def test_a_condition_that_is_never_met_confirms_nothing(proved: Prover) -> None:
    source = TRIVIAL.replace("@ensure", "@require(lambda number: number < number)\n@ensure")
    as_declared, reported = proved(source.replace("import ensure", "import ensure, require"))
    assert not as_declared and "refuted" in reported


def test_a_call_that_breaks_what_its_callee_requires_is_refuted(proved: Prover) -> None:
    as_declared, reported = proved(
        TRIVIAL.replace("import ensure", "import ensure, require")
        + """
@require(lambda number: number >= 0)
@ensure(lambda number, result: result >= 0)
def root(number: int) -> int:
    return number

@ensure(lambda number, result: result >= 0 or number < 0)
def calls(number: int) -> int:
    return root(number)
"""
    )
    assert not as_declared and "on_trial:calls is refuted" in reported


def test_all_contracts_are_proved() -> None:
    with_contracts = {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        for folder in (SOURCES, Path(kvcheck.__file__).parent)
        for path in folder.rglob("*.py")
        if "\n@ensure" in path.read_text()
    }
    assert with_contracts == set(prove.MODULES)


def test_the_memory_model_is_proved_and_shown() -> None:
    out = io.StringIO()
    assert prove.prove_memory(Console(file=out, width=120), 1, ("initial", "operation"))
    assert re.search(r"operation +insert +9 +proved for any size", out.getvalue())


def test_a_failed_proof_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = [prove.StepVerdict("step take", "after it", "ACC-1", "refuted", "page 1: not so", 0.1)]
    monkeypatch.setattr(
        prove, "_ask", lambda kind, *_: [{"step": ["take", "drop"]}] if kind != prove.StepVerdict else verdicts
    )
    out = io.StringIO()
    assert not prove.prove_memory(Console(file=out, width=120), 1, ("step",))
    assert "step take, after it: ACC-1 is refuted: page 1: not so" in out.getvalue()
    assert "nothing is proved of step drop" in out.getvalue()
