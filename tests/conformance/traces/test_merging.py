"""Files of several hosts as one trace: names are kept apart, messages order it, the verdict is that of the whole."""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import kvcheck
from kvcli.main import run_command
from kvconform.errors import InputError
from kvconform.traces import merging
from kvconform.traces.memory import MemoryReader, open_trace
from kvconform.traces.merging import MergedReader, Parts, merge
from kvspec.memory import Pool, events
from kvspec.memory.checker import Checker
from kvspec.memory.events import Event, OpId, Use
from kvtrace.header import VERSION, MemoryHeader, encode
from tests.kvcheck.walks import Apart, pools

HOSTS = Path(__file__).parent / "hosts"
"""A prefill and a decode server, each with a recording of its own."""
Found = tuple[str, str | None, int | str | None]
Names = dict[str, Callable[[Any], Any]]

BROKEN: dict[str, set[Found]] = {
    "freed_in_flight": {("MEM-RACE/write", "decode/kv", 1)},
    "lease_ends_too_early": {("MEM-RACE/write", "prefill/kv", 5)},
    "notification_is_lost": {("MEM-LEAK/idle", "prefill/kv", 5)},
    "prefill_saw_it": {("MEM-RACE/read", "decode/kv", 1)},
    "read_after_the_lease": {("MEM-USE/not-held", "prefill/kv", 5), ("MEM-CONTENT/other", "prefill/kv", 5)},
}
RIGHT = (
    "freed_after_the_answer",
    "lease_is_returned",
    "notification_comes",
    "decode_is_notified",
    "read_before_the_lease_ends",
)


def header(host: str | None = None, **more: Any) -> dict[str, Any]:
    pools = {"kv": {"page_size": 4, "num_pages": 8}}
    return {
        "kvspec": 2,
        "level": "memory",
        "producer": "a test",
        "pools": pools,
        **({"host": host} if host else {}),
    } | more


def send(id: str) -> dict[str, Any]:
    return {"op": "send", "id": id}


def receive(id: str) -> dict[str, Any]:
    return {"op": "receive", "id": id}


def taken(page: int, **more: Any) -> dict[str, Any]:
    return {"op": "take", "holder": "r", "pool": "kv", "pages": [page], **more}


def part(path: Path, *lines: dict[str, Any], end: bytes = b"") -> Path:
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines) + end)
    return path


def findings(parts: Iterable[Path]) -> set[Found]:
    with MergedReader(Parts(tuple(parts))) as trace:
        checker = kvcheck.Checker(trace.header.pools)
        return {(one.code, one.pool, one.page) for _, event in trace for one in checker.step(event)}


def recordings(name: str) -> list[Path]:
    return sorted((HOSTS / name).iterdir())


# Two servers


@pytest.mark.parametrize("name", [*BROKEN, *RIGHT])
def test_the_findings_of_two_servers_are_those_of_their_merged_trace(name: str, tmp_path: Path) -> None:
    due = BROKEN.get(name, set())
    for order in permutations(recordings(name)):
        assert findings(order) == due
        assert run_command(["check", "--merge", "-q", *map(str, order)]) == bool(due)
        assert run_command(["merge", *map(str, order), "-o", str(tmp_path / "merged.jsonl.zst")]) == 0
        assert run_command(["check", "-q", str(tmp_path / "merged.jsonl.zst")]) == bool(due)


@pytest.mark.parametrize("name", [*BROKEN, *RIGHT])
def test_each_server_alone_conforms(name: str) -> None:
    """Prefill's own trace shows a lease that is never returned."""
    for path in recordings(name):
        alone = run_command(["check", "-q", str(path)])
        assert alone == (name == "notification_is_lost" and path.stem == "prefill"), path


def test_a_file_alone_says_which_operations_are_not_checked_there(capsys: pytest.CaptureFixture[str]) -> None:
    decode, prefill = recordings("prefill_saw_it")
    for path, often in ((decode, 0), (prefill, 1)):
        assert run_command(["check", str(path)]) == 0
        said = "Not checked in this file alone: the memory of other hosts, in 1 operation.\n"
        assert capsys.readouterr().out.count(said) == often


def test_a_finding_says_where_its_events_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decode, prefill = recordings("prefill_saw_it")
    assert run_command(["check", "--merge", str(decode), str(prefill), "--sarif", str(tmp_path / "found.sarif")]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert f"MEM-RACE is broken in pool decode/kv at {decode} + {prefill}:13, begin" in printed
    assert "decode: decode/r1 takes page 1 of decode/kv (decode.jsonl:2)." in printed
    assert "for decode/r1 (prefill.jsonl:5)." in printed
    assert f"Line 13 is {decode}:4." in printed
    assert f"kvspec merge {decode} {prefill} -o merged.jsonl && kvspec show merged.jsonl --request decode/r1" in printed
    (result,) = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
    steps = result["codeFlows"][0]["threadFlows"][0]["locations"]
    places = [one["physicalLocation"] for one in (*result["locations"], *(step["location"] for step in steps))]
    stands = [(Path(one["artifactLocation"]["uri"]).name, one["region"]["startLine"]) for one in places]
    assert stands[:3] == [("decode.jsonl", 4), ("decode.jsonl", 2), ("decode.jsonl", 3)]
    assert ("prefill.jsonl", 5) in stands


def test_a_merged_trace_is_the_same_in_any_order_and_stands_in_no_file_that_it_is_made_of(tmp_path: Path) -> None:
    parts = [part(tmp_path / f"{host}.jsonl", header(), send(host), taken(1)) for host in "abc"]
    out = tmp_path / "out" / "merged.jsonl"
    out.parent.mkdir()
    written = set()
    for order in permutations(parts):
        assert merge(order, out) == 9
        written.add(out.read_bytes())
    assert len(written) == 1
    with pytest.raises(InputError, match="would overwrite a file that it is made of"):
        merge(parts, parts[1])
    assert parts[1].read_bytes().startswith(b'{"kvspec"')


def test_the_traces_of_the_guide_conform_together(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "conformance" / "docs" / "hosts.md").read_text(encoding="utf-8")
    sections = [re.findall(r"^```jsonl\n(.*?)^```$", one, re.M | re.S) for one in guide.split("\n## ")]
    pairs = [blocks for blocks in sections if blocks]
    assert [len(blocks) for blocks in pairs] == [2, 2, 2, 1]
    for number, blocks in enumerate(pairs):
        parts = [tmp_path / f"{number}.{host}.jsonl" for host in range(len(blocks))]
        for path, block in zip(parts, blocks, strict=True):
            path.write_text(block, encoding="utf-8")
        assert findings(parts) == set()


# Walks


def renamed(line: Any, names: Names) -> Any:
    """A line of a trace, or a part of it, with other values of some keys; lists of a key's values one by one."""
    if isinstance(line, list):
        return [renamed(one, names) for one in line]
    if not isinstance(line, dict):
        return line
    changed = {}
    for key, value in line.items():
        rename = names.get(key) or (lambda inner: renamed(inner, names))
        changed[key] = [*map(rename, value)] if isinstance(value, list) else rename(value)
    return changed


def ordered(walk: Sequence[Event]) -> Iterator[Event]:
    """A walk in which a message goes from each event's host to that of the next one, so that it has one order only."""
    yield from (events.Wait("host", on="host", host=host) for host in sorted({event.host or "a" for event in walk}))
    last = None
    for number, event in enumerate(walk):
        host = event.host or "a"
        if last not in (None, host):
            yield events.Send(f"to {number}", host=last)
            yield events.Receive(f"to {number}", host=host)
        last = host
        yield replace(event, host=host)


def split(folder: Path, trace: Sequence[Event], configs: dict[str, Pool]) -> list[Path]:
    """A file for each host. Pools, holders and tables are those of host a; operations and streams of who has them."""
    begun = {event.id: event.host for event in trace if isinstance(event, events.Begin)}

    def part_of(host: str) -> Iterator[Any]:
        def name(one: str) -> str:
            return one if host == "a" or one == "host" or (one in configs and configs[one].keyed) else f"a/{one}"

        def id(one: OpId) -> OpId:
            return one if begun.get(one, host) == host else f"{begun[one]}/{one}"

        fields = ("holder", "old", "new", "writer", "table", "pool", "stream", "on", "keepers", "pools")
        names: Names = dict.fromkeys(fields, name) | {"id": id, "after": id}
        yield MemoryHeader(
            VERSION, "memory", "a walk", {one: configs[one] for one in configs if name(one) == one}, host
        )
        for number, event in enumerate(event for event in trace if event.host == host):
            is_message = isinstance(event, events.Send | events.Receive)
            line = renamed(json.loads(encode(event)), names | ({"id": str} if is_message else {}))
            # An event says its host, or leaves it to the header.
            yield line if number % 2 else {key: value for key, value in line.items() if key != "host"}

    files = []
    for host in sorted({str(event.host) for event in trace}):
        files.append(folder / f"{host}.jsonl")
        files[-1].write_bytes(b"".join(encode(line) + b"\n" for line in part_of(host)))
    return files


def checked(trace: Iterable[Event], configs: dict[str, Pool]) -> Counter[Found]:
    """The findings by code and page."""
    checker = kvcheck.Checker(configs)
    found = (one for event in trace for one in checker.step(event))
    return Counter((one.code, one.pool, one.page) for one in found)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([2, 3]), st.randoms(use_true_random=False))
def test_a_walk_that_is_split_by_host_has_the_findings_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, seed: int, hosts: int, random: Random
) -> None:
    configs = pools(Random(seed), Apart.pages)
    checker = Checker(configs)
    walk, drawn = list[Event](), Apart(Random(seed + 1), checker)
    while len(walk) < 40:
        event = drawn.event()
        if not (isinstance(event, events.Receive) and event.id == "m0"):  # it is never sent
            checker.step(event)
            if isinstance(event, events.Idle) and event.pools is None:
                event.pools = [*configs]  # of one host, as each file says it
            walk.append(replace(event, host="p") if hosts == 2 and event.host == "d" else event)
    trace = list(ordered(walk))
    parts = split(tmp_path_factory.mktemp("walk"), trace, configs)
    random.shuffle(parts)
    with MergedReader(Parts(tuple(parts))) as merged:
        found = checked((event for _, event in merged), merged.header.pools)
    assert found == Counter(
        {(code, pool and own(pool, configs), page): n for (code, pool, page), n in checked(trace, configs).items()}
    )


def own(pool: str, configs: dict[str, Pool]) -> str:
    return pool if configs[pool].keyed else f"a/{pool}"


# Many requests


def course(name: str, number: int) -> list[dict[str, Any]]:
    """The events of a recorded request, with pages, holders, messages and operations of its own."""
    own = dict.fromkeys(("holder", "old", "new", "id", "after"), lambda one: f"{one}.{number}")
    with MergedReader(Parts(tuple(recordings(name)))) as trace:
        lines = [json.loads(encode(event)) for _, event in trace]
    lines = [line for line in lines if line["op"] not in ("wait", "idle")]
    return [renamed(line, own | {"pages": lambda page: page + 8 * number}) for line in lines]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(requests=st.lists(st.sampled_from(RIGHT), min_size=1, max_size=6), random=st.randoms(use_true_random=False))
def test_servers_that_do_right_are_silent_however_their_requests_mix(
    tmp_path_factory: pytest.TempPathFactory, requests: list[str], random: Random
) -> None:
    courses = [course(name, number) for number, name in enumerate(requests)]
    files = {host: [header(host, pools={"kv": {"page_size": 4, "num_pages": 64}})] for host in ("decode", "prefill")}
    while courses:
        line, *left = courses.pop(random.randrange(len(courses)))
        files[line["host"]].append(line)
        courses += [left] * bool(left)
    folder = tmp_path_factory.mktemp("requests")
    # In its own file a name has no host before it.
    own = [
        part(folder / f"{host}.jsonl", *json.loads(json.dumps([*lines, {"op": "idle"}]).replace(f'"{host}/', '"')))
        for host, lines in files.items()
    ]
    assert findings(own) == set()


def test_what_two_pairs_of_servers_do_wrong_is_found_of_each(tmp_path: Path) -> None:
    files = []
    for pair, name in enumerate(("prefill_saw_it", "lease_ends_too_early")):
        for path in recordings(name):
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            for line in lines:
                if line.get("op") in ("send", "receive"):
                    line["id"] += str(pair)
            text = "".join(json.dumps(line) + "\n" for line in lines)
            for host in ("prefill", "decode"):
                text = text.replace(f'"host": "{host}"', f'"host": "{host}{pair}"').replace(
                    f"{host}/", f"{host}{pair}/"
                )
            files.append(tmp_path / f"{path.stem}{pair}.jsonl")
            files[-1].write_text(text, encoding="utf-8")
    assert findings(files) == {("MEM-RACE/read", "decode0/kv", 1), ("MEM-RACE/write", "prefill1/kv", 5)}


@pytest.mark.parametrize(("least", "found"), [(2, {("MEM-AGREE/differs", None, None)}), (1, set())])
def test_ranks_agree_across_their_files(tmp_path: Path, least: int, found: set[Found]) -> None:
    loaded, parts = {"tp0": 2, "tp1": 1}, []
    for rank, pages in loaded.items():
        decided = [f"prefetch r1: {max(loaded.values())}", f"match r1: {min(pages, least)}"]
        lines = [{"op": "decide", "group": "tp", "what": what} for what in decided]
        parts.append(part(tmp_path / f"{rank}.jsonl", header(rank), *lines, {"op": "idle"}))
    assert findings(parts) == found
    assert run_command(["check", str(parts[0])]) == 0, "one rank alone agrees with itself"


def test_a_host_that_begins_late_knows_nothing_of_the_others(tmp_path: Path) -> None:
    disk = {"disk": {"keyed": True}}
    stored = [{"pool": "disk", "pages": ["k"]}]
    a = part(
        tmp_path / "a.jsonl", header(pools=disk), {"op": "begin", "id": 1, "writes": stored}, {"op": "end", "id": 1}
    )
    b = part(tmp_path / "b.jsonl", header(pools=disk), {"op": "begin", "id": 1, "reads": stored})
    assert findings([a, b]) == {("MEM-RACE/read", "disk", "k")}


def test_a_message_may_be_received_by_several_hosts_and_more_than_once(tmp_path: Path) -> None:
    a = part(tmp_path / "a.jsonl", header(), receive("m"), receive("m"))
    b = part(tmp_path / "b.jsonl", header(), receive("m"))
    c = part(tmp_path / "c.jsonl", header(), send("m"), send("m"), receive("m"))
    with MergedReader(Parts((a, b, c))) as trace:
        reported = [event for _, event in trace]
    assert len(reported) == 9
    assert isinstance(reported[3], events.Send)


def test_of_messages_that_were_received_the_last_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = part(tmp_path / "a.jsonl", header(), *map(send, "xyz"))
    b = part(tmp_path / "b.jsonl", header(), *map(receive, "xyz"))
    for again, remembered in (("x", 3), ("y", 2), ("z", 1)):
        c = part(tmp_path / "c.jsonl", header(), receive("z"), receive(again))
        monkeypatch.setattr(merging, "REMEMBERED", remembered)
        assert findings([a, b, c]) == set()
        monkeypatch.setattr(merging, "REMEMBERED", remembered - 1)
        with pytest.raises(InputError, match="is received here, and no file sends it"):
            findings([a, b, c])


def test_of_long_files_one_event_is_read_ahead_and_messages_are_received_soon(tmp_path: Path) -> None:
    """Prefill sends to decode and hears nothing of it, decode sends each token to a router."""
    requests, tokens = 2000, 10
    prefill = part(tmp_path / "prefill.jsonl", header(), *(send(f"done {k}") for k in range(requests)))
    course = [[receive(f"done {k}"), *(send(f"token {k}.{n}") for n in range(tokens))] for k in range(requests)]
    decode = part(tmp_path / "decode.jsonl", header(), *(line for lines in course for line in lines))
    router = part(
        tmp_path / "router.jsonl",
        header(),
        *(receive(f"token {k}.{n}") for k in range(requests) for n in range(tokens)),
    )
    flying, most, ahead = set[str](), 0, 0
    with MergedReader(Parts((prefill, decode, router))) as trace:
        for line, event in trace:
            if isinstance(event, events.Send):
                flying.add(event.id)
            elif isinstance(event, events.Receive):
                flying.discard(event.id)
            most = max(most, len(flying))
            read = sum(file.number - 1 for file in trace.files)  # without their headers
            ahead = max(ahead, read - (line - 1 - 3))
    assert line == 1 + 3 + requests * (2 + 2 * tokens)
    assert ahead <= 3
    assert most <= 3


# Bad input


def bad(folder: Path) -> dict[str, tuple[list[Path], str]]:
    """Files that are not parts of one trace, and what is said of them."""

    def file(name: str, *lines: dict[str, Any], end: bytes = b"") -> Path:
        return part(folder / f"{name}.jsonl", *lines, end=end)

    good = file("good", header(), taken(1))
    cut, torn = file("cut", header(), taken(1), end=b'{"op":"ta'), file("torn", header(), end=b'{"op":')
    one, two = file("one", header(), receive("x"), send("y")), file("two", header(), taken(1), receive("y"), send("x"))
    storages = [file(f"disk{size}", header(pools={"disk": {"keyed": True, "page_size": size}})) for size in (1, 2)]
    away = {"op": "begin", "id": 1, "writes": [{"pool": "third/kv", "pages": [1]}]}
    request = {
        "kvspec": 2,
        "producer": "a test",
        "config": {"page_size": 4, "num_pages": 8, "num_rows": 1, "max_context_len": 8},
    }
    return {
        "a message without a sender": (
            [good, file("lonely", header(), taken(1), receive("m"), taken(2))],
            "lonely.jsonl:3: message 'm' is received here, and no file sends it (a killed host's file lacks its end)",
        ),
        "a circle of messages": (
            [one, two],
            "one.jsonl:2: a circle of messages: 'x' is sent at {}/two.jsonl:4, after 'y' is received; "
            "'y' is sent at {}/one.jsonl:3, after 'x' is received",
        ),
        "a message to itself, later": (
            [good, file("early", header(), receive("m"), send("m"))],
            "early.jsonl:2: a circle of messages: 'm' is sent at {}/early.jsonl:3, after 'm' is received",
        ),
        "one file twice": (
            [good, good],
            "good.jsonl:1: host 'good' has a file, {}/good.jsonl: `host` in the header names it",
        ),
        "two files of a host": (
            [good, file("other", header("good"), taken(1))],
            "other.jsonl:1: host 'good' has a file, {}/good.jsonl: `host` in the header names it",
        ),
        "an event of another host": (
            [good, file("guest", header("h"), taken(1), taken(2, host="i"))],
            "guest.jsonl:3: an event of host 'i' in the file of host 'h'",
        ),
        "a host with a slash": (
            [good, file("slash", header("a/b"), taken(1))],
            "slash.jsonl:1: the name of a host has a slash or more than 256 characters: 'a/b'",
        ),
        "a host with a long name": (
            [good, file("long", header("h" * 257), taken(1))],
            f"long.jsonl:1: the name of a host has a slash or more than 256 characters: '{'h' * 184} ... {'h' * 49}'",
        ),
        "a message of two hosts": (
            [file("first", header(), send("m")), file("second", header(), send("m"))],
            "second.jsonl:2: message 'm' is sent by {}/first.jsonl, too",
        ),
        "a file that is cut off": ([good, cut], "cut.jsonl:3: truncated last line: the file ends in the middle of it"),
        "two that are cut off": (
            [cut, torn],
            "cut.jsonl:3: truncated last line: the file ends in the middle of it; "
            "{}/torn.jsonl:2: truncated last line: the file ends in the middle of it",
        ),
        "an empty file": ([good, file("empty")], "empty.jsonl:1: the file is empty"),
        "a header alone": ([good, file("alone", header())], "alone.jsonl:1: no event follows the header"),
        "the other level": (
            [good, file("requests", request)],
            "requests.jsonl:1: a file of the request level; one of the memory level is expected",
        ),
        "another version": (
            [good, file("newer", header(kvspec=3), taken(1))],
            "newer.jsonl:1: format version 3, but only versions 1 to 2 are known",
        ),
        "the pool of a host without a file": (
            [good, file("away", header(), away)],
            "away.jsonl:2: there is no pool third/kv in these files",
        ),
        "a storage that is declared twice": (
            storages,
            "disk2.jsonl:1: pool 'disk' is declared in another file, and otherwise",
        ),
        "a pool of another host": (
            [good, file("thief", header(pools={"good/kv": {}}), taken(1))],
            "thief.jsonl:1: pool 'good/kv' is declared in another file, and otherwise",
        ),
    }


def test_bad_files_end_with_one_line_that_names_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, (files, said) in bad(tmp_path).items():
        due = f"kvspec: {tmp_path}/{said.replace('{}', str(tmp_path))}\n"
        for command in (["check", "--merge", "-q"], ["merge", "-o", str(tmp_path / "out" / "merged.jsonl")]):
            (tmp_path / "out").mkdir(exist_ok=True)
            assert run_command([*command, *map(str, files)]) == 2, name
            assert capsys.readouterr().err == due, name


def test_files_are_checked_up_to_the_end_of_the_shortest_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One host's file is cut off, and another one waits for its messages: the third is checked to its end."""
    cut = part(tmp_path / "cut.jsonl", header(), taken(1), end=b'{"op":"send","id":"m')
    waits = part(tmp_path / "waits.jsonl", header(), taken(1), receive("m"), taken(1))
    goes_on = part(tmp_path / "whole.jsonl", header(), taken(1), taken(1))
    assert run_command(["check", "--merge", str(cut), str(waits), str(goes_on)]) == 1
    reported = capsys.readouterr()
    assert "MEM-TAKE is broken in pool whole/kv" in reported.out and reported.out.count("is broken") == 1
    assert reported.err.startswith(f"kvspec: {cut}:3: truncated last line") and reported.err.count("\n") == 1
    assert run_command(["merge", str(cut), str(waits), str(goes_on), "-o", str(tmp_path / "merged.jsonl")]) == 2
    assert run_command(["check", "-q", str(tmp_path / "merged.jsonl")]) == 1


def test_events_that_the_memory_model_does_not_allow_are_reported_with_their_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = part(tmp_path / "a.jsonl", header(), taken(1))
    b = part(tmp_path / "b.jsonl", header(), {"op": "publish", "pool": "kv", "pages": [1], "keys": []})
    assert run_command(["check", "--merge", str(a), str(b)]) == 2
    assert capsys.readouterr().err.startswith(f"kvspec: {b}:2: ")


@pytest.mark.parametrize("more", [["--follow"], ["-"], ["--ray", "local"]])
def test_only_files_are_merged(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check", "--merge", *map(str, recordings("prefill_saw_it")), *more]) == 2
    assert capsys.readouterr().err == "kvspec: Invalid value: --merge takes complete local files\n"


# One file of several


def test_a_file_of_one_host_of_several_is_checked_by_its_own_events(tmp_path: Path) -> None:
    """Its uses of other hosts' memory are left out, and its slots that others may have written are not missed."""
    own, away = {"pool": "kv", "pages": [1], "holder": "r"}, {"pool": "b/kv", "pages": [3], "holder": "b/s"}
    begin = {
        "op": "begin",
        "id": 1,
        "stream": "s",
        "reads": [own, away],
        "writes": [away],
        "copies": [[own, away], [away, own]],
    }
    lines = [taken(1, host="a"), begin, {"op": "end", "id": 1, "unwritten": [away, own]}]
    with open_trace(part(tmp_path / "a.jsonl", header("a"), *lines)) as trace:
        assert isinstance(trace, MemoryReader)
        reported = [event for _, event in trace]
        begun, ended = reported[1:]
        assert isinstance(begun, events.Begin) and isinstance(ended, events.End)
        use = msgspec.convert(own, Use)
        assert (begun.reads, begun.writes, begun.copies, ended.unwritten) == ([use, use], [use], [], [use])
        assert [event.host for event in reported] == [None] * 3
        checker = kvcheck.Checker(trace.header.pools)
        assert [one for event in reported for one in checker.step(event)] == []
    assert run_command(["check", "-q", str(part(tmp_path / "b.jsonl", header(), *lines))]) == 2


def test_a_file_of_one_host_has_no_events_of_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = part(tmp_path / "a.jsonl", header("a"), taken(1), taken(2, host="b"))
    assert run_command(["check", str(path)]) == 2
    assert capsys.readouterr().err == f"kvspec: {path}:3: an event of host 'b' in the file of host 'a'\n"


def test_files_may_be_compressed_and_name_their_host(tmp_path: Path) -> None:
    files = []
    for path in recordings("prefill_saw_it"):
        files.append(tmp_path / f"{path.stem}.001.jsonl.gz")
        head, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        nameless = json.loads(head)
        del nameless["host"]
        files[-1].write_bytes(gzip.compress("".join([json.dumps(nameless), "\n", *lines]).encode()))
    assert findings(files) == BROKEN["prefill_saw_it"]
