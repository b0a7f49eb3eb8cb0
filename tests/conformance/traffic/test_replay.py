"""Real traffic through the scheduler: `kvspec replay`, and the workload formats."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvcli.main import run_command
from kvconform.errors import InputError
from kvconform.oracle import NotedState, WatchedState, carry_out
from kvconform.traffic import mooncake
from kvconform.traffic.mooncake import Entry
from kvconform.traffic.replay import Replay
from kvref.manager import Manager
from kvref.scheduler.policy import SchedulerConfig
from kvspec.events import Config, Decode, Event, EvictAnswer, MatchAnswer, Operation, Preempt, Retract
from kvspec.tokens import Element, Tokens
from tests.conformance.traffic import synthetic

SMALL = Config(page_size=64, num_pages=75, num_rows=6, max_context_len=100_000)
"""Little more than the largest request needs."""
GOOD = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(synthetic.write(tmp_path_factory.mktemp("mooncake") / "trace.jsonl", synthetic.conversations(120, 1)))


def replay(sessions: bool, **more: Any) -> Replay:
    done = Replay(
        synthetic.conversations(150, 2),
        SMALL,
        Manager,
        sessions=sessions,
        scheduling=SchedulerConfig(max_prefill_tokens=2048, chunked_prefill_size=700, **more),
    )
    assert done.run() is None
    assert done.scheduler.finished == 150
    return done


@pytest.mark.slow
@pytest.mark.parametrize("mode", [{}, {"overlap": True}, {"mixed_chunk": True}, {"drafts": 3}], ids=str)
@pytest.mark.parametrize("sessions", [False, True])
def test_under_pressure_the_reference_breaks_no_rule(sessions: bool, mode: dict[str, Any]) -> None:
    done = replay(sessions, schedule_conservativeness=0, **mode)
    assert done.tally.evicted_pages > 100
    assert done.tally.operations[Retract]
    assert bool(done.tally.operations[Preempt]) == sessions
    assert done.tally.peak_pages == SMALL.num_pages
    assert done.tally.hit_tokens
    reached = done.checked.model.state.reached
    assert bool(reached["slot lent"]) == sessions


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [False, True])
def test_what_a_replay_counts_lets_decode_batches_go_on(sessions: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = Counter[type[Operation[Any]]]()

    def carry(state: NotedState, op: Event) -> None:
        one_by_one[type(op)] += 1
        carry_out(state, op)

    monkeypatch.setattr("kvconform.oracle.fastpath.carry_out", carry)
    decodes = replay(sessions).tally.operations[Decode]
    assert one_by_one[Decode] < decodes / 2


def test_the_tally_agrees_with_what_was_replayed() -> None:
    entries = [Entry(0, 1100, 5, [0, 1, 2]), Entry(1000, 1100, 5, [0, 1, 3])]
    memory = Config(page_size=64, num_pages=500, num_rows=1, max_context_len=100_000)
    done = Replay(entries, memory, Manager)
    assert done.run() is None
    assert done.tally.hit_tokens == 2 * 512
    assert done.tally.peak_held == 18
    assert done.tally.peak_pages == 18 + 1
    assert mooncake.duration(entries) == 1


@pytest.mark.slow
def test_the_table_shows_what_happened(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--num-pages", "75", "--num-rows", "6", "--sessions", "--schedule-conservativeness", "0"]
    assert run_command(["replay", "mooncake", trace, *arguments, "--retract-interval", "50"]) == 0
    reported = dict(re.findall(r"^ +(\S.*?\S)  +(\S.*\S|\d) *$", capsys.readouterr().out, re.M))
    assert reported["requests"] == reported["finished"] == "120"
    entries = mooncake.read(Path(trace))
    assert reported["of them further turns of a session"] == str(
        sum(previous is not None for previous in mooncake.previous_turns(entries))
    )
    assert reported["prompt tokens"] == f"{sum(entry.input_length for entry in entries):,}"
    assert reported["peak pages in use"] == "75 of 75"
    assert reported["violations"] == "0"
    for number in ("evicted pages", "preempted sessions", "retracted requests", "events checked"):
        assert int(reported[number].replace(",", "")) > 0
    assert reported.keys() >= {"cache hit tokens", "seconds", "times faster than recorded"}


def test_the_first_requests_alone(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["replay", "mooncake", trace, "--limit", "7"]) == 0
    assert re.search(r"requests +7\b", capsys.readouterr().out)


@pytest.mark.slow
def test_a_recorded_replay_passes_the_check(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "written.jsonl.zst"
    arguments = ["--sessions", "--overlap", "--num-pages", "200", "--limit", "40", "--snapshot-every", "100"]
    assert run_command(["replay", "mooncake", trace, *arguments, "--record", str(written)]) == 0
    assert run_command(["check", str(written)]) == 0
    assert "conforms" in capsys.readouterr().out


class KeepsALeaf(Manager):
    """Says that one page more was evicted than there was."""

    def evict(self, n: int, window: int = 0, states: int = 0) -> EvictAnswer:
        evicted = super().evict(n, window, states).evicted
        return EvictAnswer([*evicted, *evicted[:1]])


class NoAnswers(Manager):
    """Does not say how much of a request is cached."""

    def match_prefix(self, req: str) -> MatchAnswer:
        super().match_prefix(req)
        return MatchAnswer()


class NeverThere(Manager):
    """Has no memory at all."""

    def __init__(self, config: Config) -> None:
        raise MemoryError("no device")


@pytest.mark.slow
def test_the_memory_checker_checks_a_replay_on_request(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["replay", "mooncake", trace, "--sessions", "--overlap", "--num-pages", "200", "--limit", "10"]
    assert run_command([*arguments, "--memory-model"]) == 0
    monkeypatch.setattr(WatchedState, "release_private", lambda state, record, pages: state.release_pages(pages))
    assert run_command(arguments) == 0
    assert run_command([*arguments, "--memory-model"]) == 1
    out = capsys.readouterr().out
    assert "MEM-TAKE is broken" in out and "The shortest operations that still show it" in out


HERE = "tests.conformance.traffic.test_replay"


def test_a_broken_implementation_ends_with_1_and_the_rule(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["replay", "mooncake", trace, "--num-pages", "75", "--impl", f"{HERE}:KeepsALeaf"]) == 1
    out = capsys.readouterr().out
    assert "1, where it stopped" in out
    assert "PAGE-1 is broken" in out
    assert "was evicted twice" in out
    assert "The shortest operations that still show it (6 of " in out


def test_an_implementation_that_cannot_be_made_ends_with_1(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["replay", "mooncake", trace, "--impl", f"{HERE}:NeverThere"]) == 1
    assert "no device" in capsys.readouterr().out


def test_an_implementation_that_cannot_be_scheduled_ends_with_2(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["replay", "mooncake", trace, "--impl", f"{HERE}:NoAnswers"]) == 2
    assert "prefix_len" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (b"{", "truncated last line"),
        (b"{\n", "not JSON"),
        (b"\n", "an empty line"),
        (b"\xff\n", "not JSON"),
        (b"[1]\n", "Expected `object`"),
        (json.dumps(GOOD | {"input_length": "600"}).encode() + b"\n", "Expected `int`, got `str`"),
        (json.dumps(GOOD | {"input_length": 0}).encode() + b"\n", ">= 1"),
        (json.dumps(GOOD | {"output_length": 0}).encode() + b"\n", ">= 1"),
        (json.dumps(GOOD | {"output_length": 10**18}).encode() + b"\n", "<= 2147483647"),
        (json.dumps(GOOD | {"hash_ids": ["a", "b"]}).encode() + b"\n", "Expected `int`, got `str`"),
        (json.dumps(GOOD | {"hash_ids": [0]}).encode() + b"\n", "600 is 2 blocks of 512, but there are 1 hash_ids"),
        (b'{"timestamp": 0, "input_length": 600}\n', "missing required field"),
    ],
)
def test_a_bad_line_is_reported_in_one_line(
    second: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n" + second)
    assert run_command(["replay", "mooncake", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"kvspec: {path}:2: ")
    assert reason in captured.err
    assert captured.err.count("\n") == 1


def test_an_empty_file_and_a_missing_one_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"")
    assert run_command(["replay", "mooncake", str(empty)]) == 2
    assert run_command(["replay", "mooncake", str(tmp_path / "none.jsonl")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"kvspec: {empty}:1: the file is empty"
    assert "No such file" in second


@pytest.mark.parametrize("wrong", [["--page-size", "48"], ["--page-size", "0"], ["--page-size", "1024"]])
def test_a_page_size_that_does_not_divide_a_block_is_refused(
    wrong: list[str], trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["replay", "mooncake", trace, *wrong]) == 2
    assert "does not divide the blocks of 512" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--num-pages", "0"], ["--num-rows", str(2**31)]])
def test_sizes_that_no_pool_has_are_refused(wrong: list[str], trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["replay", "mooncake", trace, *wrong]) == 2
    assert f"{wrong[0]} {wrong[1]} is not in 1.." in capsys.readouterr().err


def test_a_turn_continues_the_longest_then_latest_shorter_request_without_a_continuation() -> None:
    entries = [
        Entry(0, 1200, 1, [0, 1, 9]),  # full blocks 0 1
        Entry(0, 1300, 1, [0, 1, 8]),  # of 0
        Entry(0, 700, 1, [0, 7]),  # shares the system prompt alone
        Entry(0, 1700, 1, [0, 1, 8, 6]),  # of 1: its last block was partial, its full blocks are 0 1
        Entry(0, 1700, 1, [0, 1, 8, 5]),  # no request without a continuation is left
        Entry(0, 2100, 1, [0, 1, 8, 5, 4]),  # of 4, longer than any other
        Entry(0, 2100, 1, [0, 1, 8, 5, 4]),  # of none: as long as 5, and 4 is taken
    ]
    assert mooncake.previous_turns(entries) == [None, 0, None, 1, None, 4, None]


@pytest.mark.parametrize("page_size", [1, 16, 64, 512])
def test_a_prompt_is_page_keys_for_whole_pages_and_own_ids_for_the_rest(page_size: int) -> None:
    entries = [Entry(0, 1100, 5, [7, 8, 9]), Entry(0, 1100, 5, [7, 8, 9])]
    first, second = mooncake.requests(entries, page_size, sessions=False)
    whole = 1100 // page_size
    assert first.tokens[:whole] == second.tokens[:whole]
    assert all(isinstance(element, str) for element in first.tokens[:whole])
    assert len(set(first.tokens[:whole])) == whole
    own = {*first.tokens[whole:], *first.outputs}
    assert len(own) == 1100 % page_size + 5
    assert not own & {*second.tokens[whole:], *second.outputs}
    assert length(first.tokens, page_size) == 1100


def length(tokens: list[Element], page_size: int) -> int:
    return len(Tokens(page_size, tokens))  # which also refuses keys that do not stand at a page border


@pytest.mark.parametrize("page_size", [1, 16, 64, 512])
def test_a_turn_begins_with_its_sessions_history_and_goes_on_with_the_blocks_of_its_own(page_size: int) -> None:
    entries = [
        Entry(0, 1100, 70, [0, 1, 2]),
        Entry(0, 1800, 40, [0, 1, 2, 3]),
        Entry(0, 1830, 5, [0, 1, 2, 3]),  # shorter than what the session has seen: one token is new
        Entry(0, 900, 5, [0, 5]),
    ]
    first, second, third, alone = mooncake.requests(entries, page_size, sessions=True)
    assert [one.session for one in (first, second, third, alone)] == ["s1", "s1", "s1", None]
    assert [one.last_turn for one in (first, second, third)] == [False, False, True]
    history = [*first.tokens, *first.outputs]
    assert second.tokens[: len(history)] == history
    assert length(second.tokens, page_size) == 1800
    keys = [element for element in second.tokens[len(history) :] if isinstance(element, str)]
    plain = next(mooncake.requests(entries[1:2], page_size, sessions=False))
    assert keys == plain.tokens[-(-1170 // page_size) : 1800 // page_size]
    history = [*second.tokens, *second.outputs]
    assert third.tokens[:-1] == history
    assert length(third.tokens, page_size) == 1841


def test_no_two_requests_share_an_id() -> None:
    entries = synthetic.conversations(50, 3)
    seen: set[int] = set()
    for one in mooncake.requests(entries, 16, sessions=False):
        own = [element for element in [*one.tokens, *one.outputs] if isinstance(element, int)]
        assert seen.isdisjoint(own)
        seen.update(own)


def test_made_traffic_reads_back(tmp_path: Path) -> None:
    entries = synthetic.conversations(50, 4)
    assert mooncake.read(synthetic.write(tmp_path / "made.jsonl", entries)) == entries
    with pytest.raises(InputError):
        mooncake.read(tmp_path / "none.jsonl")


WINDOW = ["--sliding-window", "1024", "--num-window-pages", "40"]


@pytest.mark.slow
@pytest.mark.parametrize(("hybrid", "row"), [(WINDOW, "window pages left behind"), (["--num-states", "8"], "states")])
def test_real_traffic_goes_through_a_hybrid_pool(
    trace: str, capsys: pytest.CaptureFixture[str], hybrid: list[str], row: str
) -> None:
    arguments = ["--sessions", "--num-pages", "75", "--num-rows", "6", "--schedule-conservativeness", "0"]
    assert run_command(["replay", "mooncake", trace, *arguments, *hybrid, "--snapshot-every", "200"]) == 0
    reported = capsys.readouterr().out
    assert re.search(r"finished +120\b", reported) and re.search(r"violations +0\b", reported)
    assert int(re.search(rf"{row}[a-z ]* ([\d,]+)", reported)[1].replace(",", "")) > 0  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--num-states", "1"], "1 state slots are fewer than the 3 that each request needs"),
        (["--num-states", "9", "--drafts", "2"], "speculative decoding does not go with recurrent states"),
        (["--sliding-window", "128", "--num-window-pages", "1"], "none of the requests fits into this memory"),
        (["--sliding-window", "128"], "--sliding-window and --num-window-pages go together"),
        (
            ["--impl", "tests.conformance.traffic.test_replay:WithoutStates", "--num-states", "9"],
            "cannot run this: no recurrent states",
        ),
    ],
)
def test_a_memory_in_which_nothing_can_run_is_reported_in_one_line(
    trace: str, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert run_command(["replay", "mooncake", trace, "--limit", "5", *arguments]) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1


class WithoutStates(Manager):
    """Has no recurrent states."""

    lacks = frozenset({"recurrent_states"})
