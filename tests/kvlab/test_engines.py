"""Engines: what is fetched and listed, and what an implementation declares that it lacks."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvcli import engines as commands
from kvconform import features
from kvconform.oracle import Model
from kvconform.traces.codec import read_vector
from kvconform.vectors.files import vector_file
from kvlab import releases as engines
from kvlab.sglang.adapter.finder import prepare, version_in
from kvlab.stubs import EngineError
from kvspec.events import (
    Abort,
    CacheUnfinished,
    Complete,
    Config,
    Decode,
    Extend,
    Finish,
    Launch,
    MatchPrefix,
    Refusal,
    Retract,
    Submit,
    SwaEvict,
    Verify,
)


def release(cache: Path, version: str) -> Path:
    """A folder that looks like a fetched release."""
    folder = engines.folder_of(version, cache)
    (folder / "sglang" / "srt" / "mem_cache").mkdir(parents=True)
    (folder / f"sglang-{version}.dist-info").mkdir()
    return folder


def test_releases_are_kept_below_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert engines.folder_of("0.5.10") == tmp_path / "kvspec" / "engines" / "sglang-0.5.10"


def test_releases_are_listed_in_the_order_of_their_versions(tmp_path: Path) -> None:
    for version in ("0.5.10.post1", "0.5.9", "0.5.10", "0.5.8.post1"):
        release(tmp_path, version)
    (tmp_path / "sglang-0.5.11").mkdir()  # interrupted: it holds nothing
    assert engines.installed(tmp_path) == ["0.5.8.post1", "0.5.9", "0.5.10", "0.5.10.post1"]


def test_a_release_that_is_there_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = release(tmp_path, "0.5.10")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was run"))
    assert engines.fetch("0.5.10", tmp_path) == folder


def test_a_failed_fetch_leaves_nothing_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess[bytes]([], 1, b"", b"a warning\nERROR: no such version\n")
    monkeypatch.setattr(engines, "run", lambda *_, **__: failed)
    with pytest.raises(engines.NotFetched, match=r"sglang==9\.9: ERROR: no such version"):
        engines.fetch("9.9", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_wheel_must_be_the_one_that_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "sglang-0.5.10-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as parts:
        parts.writestr("sglang/__init__.py", "")
        parts.writestr("sglang-0.5.10.dist-info/METADATA", "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.10\n")
        parts.writestr("sglang-0.5.10.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        parts.writestr("sglang-0.5.10.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    cache = tmp_path / "cache"
    done = CliRunner().invoke(commands.app, ["install", "sglang==0.5.10", "--cache", str(cache)])
    assert (done.exit_code, "is not the one" in done.output) == (2, True), done.output
    assert not list(cache.iterdir())


def test_each_release_that_the_makefile_names_is_pinned() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    (vllm,) = re.findall(r"^VLLM \?= (.*)$", makefile, re.MULTILINE)
    ((sglang, rest),) = re.findall(r"^SGLANG \?= (.*) \$\(foreach n,(.*),0\.5\.\$\(n\)\)$", makefile, re.MULTILINE)
    named = [("vllm", one) for one in vllm.split()]
    named += [("sglang", one) for one in (*sglang.split(), *(f"0.5.{one}" for one in rest.split()))]
    assert len(named) > 18
    assert not [one for one in named if not re.search(r"( --hash=sha256:[0-9a-f]{64})+$", engines.pinned(*one) or "")]


def test_install_takes_releases_by_name_and_version_only(tmp_path: Path) -> None:
    for name in ("sglang", "sglang>=0.5", "torch==2.0", "sglang==--index-url"):
        done = CliRunner().invoke(commands.app, ["install", name, "--cache", str(tmp_path)])
        assert done.exit_code == 2
        assert "ENGINE==VERSION" in done.output.split("Error")[1]


def test_a_folder_without_a_release_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(EngineError, match="holds no SGLang release"):
        prepare(tmp_path)


def test_a_wheels_version_is_read_from_its_metadata(tmp_path: Path) -> None:
    assert version_in(release(tmp_path, "0.5.10.post1")) == "0.5.10.post1"
    with pytest.raises(EngineError):
        version_in(tmp_path)


@pytest.mark.slow
def test_the_adapter_says_in_one_line_that_torch_is_missing(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from kvconform.errors import LoadError\n"
        "from kvconform.implementations import load\n"
        "try: load('kvlab.sglang.adapter:Adapter')\n"
        "except LoadError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "Error" in done.stdout
    assert "torch" in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("vector", "feature"),
    [
        ("session_discipline", "sessions"),
        ("preempt_idle_session", "preempt"),
        ("speculative_decode", "speculative"),
        ("page_keys", "page_keys"),
        ("token_ids_past_32_bits", "wide_tokens"),
        ("chunk_cache", "chunk_cache"),
        ("row_withheld_until_launch_completes", "release_in_flight"),
        ("resumed_row_still_read", "release_in_flight"),
    ],
)
def test_a_vector_needs_what_it_is_about(vector: str, feature: str) -> None:
    assert feature in features.needs(read_vector(vector_file(vector)))


def test_a_plain_vector_needs_nothing_but_pages() -> None:
    assert features.needs(read_vector(vector_file("decode_capacity_miss"))) == {"larger_pages"}


def test_what_is_lacking_must_be_a_known_feature() -> None:
    class Adapter:
        lacks = frozenset({"sessions", "wings"})

    with pytest.raises(ValueError, match="wings"):
        features.lacks(Adapter)
    assert features.why_not(["preempt", "sessions"]).count("no ") == 2


PLAIN = Config(page_size=4, num_pages=16, num_rows=4, max_context_len=64)
WINDOWED = Config(4, 16, 4, 64, sliding_window=4, num_window_pages=16)
WITH_STATES = Config(4, 16, 4, 64, num_states=4)


def needed(*before: object, now: object, config: Config = PLAIN) -> frozenset[str]:
    """The needs of the last of some operations, after the others were carried out."""
    model = Model(config)
    for op in before:
        try:
            model.step(op)  # type: ignore[arg-type]
        except Refusal as refusal:
            pytest.fail(str(refusal))
    return features.needs_now(model.state, now)  # type: ignore[arg-type]


def test_token_ids_of_more_than_31_bits_are_a_feature() -> None:
    wide = 1 << 31
    assert needed(now=Submit("A", [wide])) == {"wide_tokens"}
    assert not needed(now=Submit("A", [wide - 1]))
    assert needed(now=Complete(1, {"A": wide})) == {"wide_tokens"}
    assert needed(now=Verify("A", 1, [wide])) == {"speculative", "wide_tokens"}


def test_letting_go_of_unlaunched_work_is_a_feature() -> None:
    prefill = Submit("A", [1, 2]), MatchPrefix("A"), Extend([("A", 2)])
    assert needed(*prefill, now=Abort("A")) == {"release_before_launch"}
    assert needed(*prefill, Launch(1, ["A"]), now=Retract("A")) == {"release_in_flight"}
    assert needed(*prefill, Launch(1, ["A"]), now=Finish("A")) == {"release_in_flight", "early_finish"}


def prefill(tokens: int, req: str = "A", launch: int = 1) -> tuple[object, ...]:
    """A request whose whole prompt was computed, with the token that follows it."""
    submit = Submit(req, list(range(tokens))), MatchPrefix(req), Extend([(req, tokens)])
    return (*submit, Launch(launch, [req]), Complete(launch, {req: 7}))


def test_publishing_behind_the_window_is_a_feature() -> None:
    publish = CacheUnfinished("A")
    assert not needed(*prefill(13), now=publish, config=WINDOWED)
    assert needed(*prefill(13), SwaEvict("A"), now=publish, config=WINDOWED) == {"late_publish"}


def test_publishing_after_a_decode_step_is_a_feature_where_there_are_states() -> None:
    step = Decode(["A"]), Launch(2, ["A"])
    assert not needed(*prefill(5), *step, now=CacheUnfinished("A"), config=WITH_STATES)
    late = (*step, Complete(2, {"A": 8}))
    assert needed(*prefill(5), *late, now=CacheUnfinished("A"), config=WITH_STATES) == {"late_publish"}
    assert not needed(*prefill(5), *late, now=CacheUnfinished("A"))


def test_a_chunk_that_ends_within_a_page_is_a_feature_where_there_are_states() -> None:
    waiting = Submit("A", list(range(9))), MatchPrefix("A")
    assert needed(*waiting, now=Extend([("A", 6)]), config=WITH_STATES) == {"chunk_in_page"}
    assert not needed(*waiting, now=Extend([("A", 8)]), config=WITH_STATES)
    assert not needed(*waiting, now=Extend([("A", 9)]), config=WITH_STATES)
    assert not needed(*waiting, now=Extend([("A", 6)]))


def test_publishing_without_a_state_is_a_feature() -> None:
    tight = Config(4, 16, 4, 64, num_states=3)
    assert needed(*prefill(5), now=CacheUnfinished("A"), config=tight) == {"publish_without_state"}
    assert not needed(*prefill(5), now=CacheUnfinished("A"), config=WITH_STATES)


def test_deep_overlap_is_a_feature() -> None:
    prefill = Submit("A", [1, 2]), MatchPrefix("A"), Extend([("A", 2)]), Launch(1, ["A"])
    two = (*prefill, Decode(["A"]), Launch(2, ["A"]))
    assert not needed(*two, now=Decode(["A"]))
    assert needed(*two, Decode(["A"]), now=Launch(3, ["A"])) == {"deep_overlap"}


def test_going_on_from_a_chunk_that_was_not_published_is_a_feature() -> None:
    chunk = Submit("A", list(range(9))), MatchPrefix("A"), Extend([("A", 4)]), Launch(1, ["A"])
    assert needed(*chunk, now=Extend([("A", 9)])) == {"unpublished_chunks"}
    assert not needed(*chunk, CacheUnfinished("A", True), now=Extend([("A", 9)]))


def test_a_batch_beside_a_chunk_is_a_feature() -> None:
    chunk = (
        Submit("A", list(range(9))),
        MatchPrefix("A"),
        Extend([("A", 4)]),
        Launch(1, ["A"]),
        CacheUnfinished("A", True),
    )
    other = Submit("B", [7, 7]), MatchPrefix("B")
    assert needed(*chunk, *other, now=Extend([("A", 8), ("B", 2)])) == {"beside_a_chunk"}
    assert not needed(*chunk, *other, now=Extend([("A", 9), ("B", 2)]))
