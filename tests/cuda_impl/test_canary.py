"""The canary: reads of the right content pass; others are reported with slot, position and writer."""

from typing import Any

import numpy as np
import pytest
import torch

from kvcuda.backend import DEVICE
from kvcuda.canary import Canary, Known, Pass, Places, Pool, States, spans_of
from kvcuda.canary.chain import Prefix, extended, term
from kvcuda.canary.perturb import Perturbation, PerturbedCanary
from kvcuda.canary.words import RECENT, Kind, ViolationKind
from kvcuda.streams import default_streams
from tests.cuda_impl.canary_engine import Engine, ints

pytestmark = pytest.mark.slow

ROWS = Pool("kv", 128)
BLOCKS = Pool("kv", 256, page_size=4, block_tables=True)


@pytest.fixture(autouse=True)
def small_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcuda.canary.canary.BLOCK", 4)


def started(pool: Pool = ROWS, **options: Any) -> Engine:
    """Requests a and b: ten and seven positions written, the host knows nothing of the last ones."""
    engine = Engine(pool, **options)
    engine.give("a", range(10, 40) if not pool.block_tables else range(3, 9))
    engine.give("b", range(50, 80) if not pool.block_tables else range(20, 26))
    assert engine.run(("a", 0, range(1, 10)), ("b", 0, range(70, 76))) == []
    assert engine.run(("a", 9, [11]), ("b", 6, [12])) == []
    return engine


def step(engine: Engine, **options: Any) -> list[str]:
    """One more token of each; what was found, in words."""
    a, b = len(engine.tokens["a"]), len(engine.tokens["b"])
    return [str(one) for one in engine.run(("a", a, [5]), ("b", b, [6]), **options)]


# The chain


def test_label_of_a_prefix_grows_with_it_and_depends_on_the_order() -> None:
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    whole = extended(0, tokens, 0)
    assert whole == extended(extended(0, tokens[:9], 0), tokens[9:], 9)
    assert whole != extended(0, [*tokens[1::-1], *tokens[2:]], 0)
    assert term(0, 0) != 0
    prefix = Prefix()
    assert [prefix.grown(tokens, n) for n in (2, 9, 11, 3)] == [extended(0, tokens[:n], 0) for n in (2, 9, 11, 3)]


def test_device_stamps_the_labels_that_the_host_computes() -> None:
    engine = started(BLOCKS)
    slots = [engine.slot("a", position) for position in range(10)]
    tokens = engine.tokens["a"]
    assert engine.canary.labels[slots].tolist() == [extended(0, tokens[: n + 1], 0) for n in range(10)]
    assert engine.canary.tokens[slots].tolist() == tokens
    assert engine.canary.positions[slots].tolist() == list(range(10))


# Without violations


@pytest.mark.slow
@pytest.mark.parametrize("pool", [ROWS, BLOCKS, Pool("kv", 128, page_size=3, block_tables=True)])
def test_requests_that_go_on_are_silent(pool: Pool) -> None:
    engine = started(pool)
    assert [step(engine) for _ in range(5)] == [[]] * 5
    assert engine.run(("a", 15, range(6))) == []


def test_prefix_that_two_share_is_silent_and_known_by_its_tokens() -> None:
    engine = started(BLOCKS)
    engine.give("c", [3, 4, 15])
    engine.tokens["c"] = engine.tokens["a"][:8]
    assert engine.run(("c", 8, [31, 32]), fresh=["c"]) == []
    engine.tokens["d"] = [*engine.tokens["a"][:7], 99]
    engine.give("d", [3, 4, 16])
    found = engine.run(("d", 8, [31]), fresh=["d"])
    assert [(one.kind, one.position, one.slot) for one in found] == [(ViolationKind.LAST, 7, 19)]


def test_drafts_that_are_taken_back_are_stamped_again() -> None:
    engine = started()
    assert engine.run(("a", 10, [11, 12, 13, 14])) == []
    assert engine.run(("a", 12, [31, 32])) == [], "two of four were accepted"
    assert engine.run(("a", 14, [33])) == []


def test_as_many_drafts_as_are_kept_can_be_taken_back() -> None:
    engine = Engine(Pool("kv", 200), context=180)
    engine.give("a", range(10, 190))
    assert engine.run(("a", 0, range(100))) == []
    assert engine.run(("a", 101 - RECENT, [7])) == []


def test_slots_that_a_pass_writes_may_be_read_in_it() -> None:
    """One request hits a prefix that another computes in this step: checked by position now, and by label later."""
    engine = started(BLOCKS)
    engine.give("c", [30, 31])
    engine.give("d", [30, 32])
    engine.tokens["d"] = [1, 2, 3, 4]
    assert engine.run(("c", 0, [1, 2, 3, 4, 5]), ("d", 4, [9]), fresh=["d"]) == []
    engine.tokens["e"] = [1, 2, 3, 8]
    engine.give("e", [33, 34])
    engine.give("f", [33, 35])
    engine.tokens["f"] = [1, 2, 3, 4]
    assert engine.run(("e", 0, [1, 2, 3, 8]), ("f", 4, [9]), fresh=["e", "f"]) == []
    assert [one.kind for one in engine.run(("f", 5, [9]))] == [ViolationKind.OTHER]


def test_overwritten_slot_is_silent_if_it_is_not_read() -> None:
    engine = started(Pool("kv", 128, window=3))
    engine.canary.labels[engine.slot("a", 5)] = 77
    assert step(engine) == []


# Violations


def test_violation_names_request_position_slot_and_who_wrote_it() -> None:
    engine = started()
    engine.give("a", [51], 4)
    assert step(engine) == [
        "launch 3 reads position 4 of request a from slot 51, but it holds position 1 of request b, written at "
        "launch 1 (1 more behind it)",
    ]


def test_table_entry_of_another_request_is_reported_once_with_all_its_positions() -> None:
    engine = started(BLOCKS)
    engine.give("a", [20], 1)
    (violation,) = engine.run(("a", 10, [5]))
    assert (violation.kind, violation.position, violation.slot, violation.times) == (ViolationKind.OTHER, 4, 80, 5)


def test_first_position_is_looked_at() -> None:
    """There is nothing before it that could be excused."""
    engine = started(BLOCKS)
    engine.give("a", [4, 3])
    assert [(one.position, one.slot) for one in engine.run(("a", 10, [5]), ("b", 7, [6, 7]))] == [(0, 16)]


def test_slot_that_nothing_was_written_to_is_found() -> None:
    engine = started()
    engine.give("a", [100], 3)
    assert step(engine)[0].startswith("launch 3 reads position 3 of request a from slot 100, which was never written")


def test_slot_that_is_none_is_found() -> None:
    engine = started()
    engine.give("a", [1000], 3)
    assert step(engine)[0].startswith("launch 3 reads position 3 of request a from slot 1000, which does not exist")
    found = engine.run(("b", 7, [1]), slots=[128])
    assert [one.kind for one in found] == [ViolationKind.WRITES]


def test_last_position_that_another_has_overwritten_is_found() -> None:
    engine = started()
    engine.give("c", [19, 90])
    engine.run(("c", 0, [1]))
    found = engine.run(("a", 10, [5]))
    assert [(one.position, one.slot, str(one.held)) for one in found] == [
        (9, 19, "position 0 of request c, written at launch 3")
    ]


def test_row_of_another_request_is_found_by_its_last_position_alone() -> None:
    """A whole row that is wrong is consistent in itself."""
    engine = Engine(ROWS)
    engine.give("a", range(10, 40))
    engine.give("b", range(50, 80))
    engine.run(("a", 0, [1, 2, 3]), ("b", 0, [4, 5, 6]))
    engine.give("a", range(50, 53))
    assert [(one.kind, one.position) for one in engine.run(("a", 3, [9]))] == [(ViolationKind.LAST, 2)]


def test_content_behind_other_tokens_is_reported_as_such() -> None:
    engine = started()
    tokens = [1, 2, 99, *engine.tokens["a"][3:]]
    found = engine.run(("a", 10, [5]), known={0: Known(5, extended(0, tokens[:6], 0))})
    assert [(one.kind, one.position) for one in found] == [(ViolationKind.KNOWN, 5)]
    assert str(found[0]).endswith("written at launch 1, behind other tokens than the request has")


@pytest.mark.slow
def test_padding_and_tokens_without_a_slot_are_not_stamped() -> None:
    engine = started(Pool("kv", 128, page_size=4))
    before = engine.canary.labels.clone()
    engine.run(("b", 7, [1, 2]), slots=[-1, 3])
    assert torch.equal(engine.canary.labels, before)


def test_share_of_the_positions_finds_what_is_wrong_within_as_many_launches() -> None:
    engine = started(share=3)
    engine.canary.labels[engine.slot("a", 5)] = 77
    found = [bool(step(engine)) for _ in range(3)]
    assert found.count(True) == 1


# Windows behind a translation, states, several pools


@pytest.mark.slow
def test_pools_of_a_window_and_of_states_are_looked_at_in_the_same_launch() -> None:
    through = torch.zeros(64, dtype=torch.int64, device=DEVICE)
    through[10:40] = torch.arange(30, 60, device=DEVICE)
    pools = [
        Pool("kv", 64),
        Pool("window", 64, window=3, translation=through),
        Pool("states", 8, kind=Kind.STATES),
        Pool("host", 64),
    ]
    canary = Canary(pools, rows=2, max_requests=2, passes=3)
    table = torch.arange(10, 30, dtype=torch.int32, device=DEVICE)

    def run(start: int, tokens: list[int], source: int, border: int = 0, kept: int = 0) -> list[Any]:
        slots = torch.arange(10 + start, 10 + start + len(tokens), device=DEVICE)
        known = {0: Known(-1, 0, fresh=True)} if not start else {}
        positions = torch.arange(start, start + len(tokens), device=DEVICE)
        states = States(ints(source), ints(4), ints(border), ints(kept))
        ids = torch.tensor(tokens, device=DEVICE)
        places: list[Places | States] = [Places(table, ints(0), slots)] * 2
        places.append(states)
        canary.launch(Pass(["a"], ints(len(tokens)), ids, positions, places, known, longest=32))
        default_streams(DEVICE).synchronize()
        return [(one.pool, one.kind, one.position, one.slot) for one in canary.poll()]

    assert run(0, [1, 2, 3, 4, 5], 0, border=4, kept=5) == []
    state = canary.bases[2]
    assert canary.labels[state + 4].item() == extended(0, [1, 2, 3, 4, 5], 0)
    assert canary.labels[state + 5].item() == extended(0, [1, 2, 3, 4], 0)
    assert run(5, [6], 4) == []
    assert run(6, [7], 5) == [("states", ViolationKind.LAST, 5, 5)]
    through[12] = 40
    assert run(7, [8], 4) == [], "position 2 is behind the window of 3"
    through[15] = 40
    assert run(8, [9], 4) == [("window", ViolationKind.NEVER, 5, 40)]
    copied(canary, "states", [4], "host", [9])
    copied(canary, "host", [9], "states", [6])
    assert run(9, [10], 6) == [], "a state goes to the host tier and back"
    copied(canary, "host", [9], "states", [4])
    assert run(10, [11], 4) == [("states", ViolationKind.LAST, 9, 4)], "one that is older than the request"


# Real bytes, and copies


def test_bytes_that_change_behind_the_labels_are_found() -> None:
    kv = torch.zeros(16, 4, 2, 8, dtype=torch.float32, device=DEVICE)
    engine = Engine(Pool("kv", 64, 4, block_tables=True, spans=spans_of(kv, page_dim=0, slot_dim=1)))
    engine.give("a", [3, 5, 7])

    def write(start: int, tokens: list[int]) -> None:
        batch_slots = [engine.slot("a", start + i) for i in range(len(tokens))]
        for slot, token in zip(batch_slots, tokens, strict=True):
            kv[slot // 4, slot % 4] = token

    def run(start: int, tokens: list[int]) -> list[Any]:
        found = engine.run(("a", start, tokens))
        write(start, tokens)
        engine.seal()
        return found

    assert run(0, [1, 2, 3, 4, 5, 6]) == []
    assert run(6, [7]) == []
    kv[5, 0, 1, 4] = 99.0
    assert run(7, [8]) == [], "the first 16 bytes are looked at"
    kv[5, 0, 0, 1] = 99.0
    assert [(one.kind, one.position, one.slot) for one in run(8, [9])] == [(ViolationKind.BYTES, 4, 20)]
    write(0, [1, 2, 3, 4, 5])
    assert run(9, [7]) == []


def test_all_bytes_of_a_slot_are_its_contiguous_pieces() -> None:
    heads_first = torch.zeros(16, 2, 4, 8, dtype=torch.float16)
    spans = spans_of(heads_first, page_dim=0, slot_dim=2, whole=True)
    assert [(span.address - heads_first.data_ptr(), *span[1:]) for span in spans] == [
        (0, 128, 16, 2),
        (64, 128, 16, 2),
    ]
    assert [span.words for span in spans_of(heads_first, page_dim=0, slot_dim=2)] == [2]
    plain = torch.zeros(32, 3, 8, dtype=torch.float16)
    assert [span[1:] for span in spans_of(plain, page_dim=0, whole=True)] == [(48, 0, 6)]
    with pytest.raises(ValueError, match="no whole number of words"):
        spans_of(torch.zeros(4, 3, dtype=torch.float16), page_dim=0, whole=True)


def copied(canary: Canary, source: str, sources: list[int], target: str, targets: list[int]) -> None:
    one, other = (torch.tensor(slots, device=DEVICE) for slots in (sources, targets))
    canary.copy(source, one, target, other)


def test_labels_go_to_the_host_tier_and_back() -> None:
    engine = started(BLOCKS, host=Pool("host", 64, page_size=4))
    copied(engine.canary, "kv", [*range(12, 20)], "host", [*range(8, 16)])
    copied(engine.canary, "host", [*range(8, 16)], "kv", [*range(40, 48)])
    engine.give("a", [10, 11])
    assert step(engine) == []
    engine.give("a", [11, 10])
    assert step(engine)


def test_digests_of_bytes_go_to_the_host_tier_and_back() -> None:
    kv = torch.zeros(16, 4, 8, dtype=torch.float32, device=DEVICE)
    spans = spans_of(kv, page_dim=0, slot_dim=1)
    engine = Engine(Pool("kv", 64, 4, block_tables=True, spans=spans), host=Pool("host", 64, page_size=4))
    engine.give("a", [3, 5])
    assert engine.run(("a", 0, [1, 2, 3, 4])) == []
    kv[3] = torch.arange(32, device=DEVICE).view(4, 8)
    engine.seal()
    copied(engine.canary, "kv", [*range(12, 16)], "host", [*range(8, 12)])
    copied(engine.canary, "host", [*range(8, 12)], "kv", [*range(40, 44)])
    engine.give("a", [10, 5])
    kv[10] = kv[3]
    assert engine.run(("a", 4, [5])) == []
    kv[10, 2, 1] = 99.0
    assert [(one.kind, one.slot) for one in engine.run(("a", 5, [6]))] == [(ViolationKind.BYTES, 42)]


# The self-test


def perturbed(perturbation: Perturbation, **options: Any) -> tuple[Engine, PerturbedCanary]:
    engine = Engine(BLOCKS, host=Pool("host", 64, page_size=4), made=PerturbedCanary)
    canary = engine.canary
    assert isinstance(canary, PerturbedCanary)
    canary.perturbation = perturbation
    canary.after = options.get("after", 2)
    engine.give("a", range(3, 9))
    engine.give("b", range(20, 26))
    for start_a, start_b, tokens in ((0, 0, range(9)), (9, 9, [3]), (10, 10, [4])):
        engine.run(("a", start_a, tokens), ("b", start_b, [token + 40 for token in tokens]))
    return engine, canary


@pytest.mark.slow
@pytest.mark.parametrize("perturbation", [Perturbation.TABLE, Perturbation.STALE, Perturbation.USED])
def test_perturbation_is_found_at_once(perturbation: Perturbation) -> None:
    engine, canary = perturbed(perturbation)
    assert canary.done_at == 3
    assert engine.found
    assert {one.launch for one in engine.found} == {3}


def test_table_is_put_back_before_the_pass_runs() -> None:
    engine, _ = perturbed(Perturbation.TABLE)
    assert engine.table[0, :6].tolist() == [*range(3, 9)]
    assert engine.run(("a", 11, [5])) == []


def test_token_that_is_swapped_is_found_where_the_host_knows_the_tokens() -> None:
    engine, canary = perturbed(Perturbation.TOKEN)
    assert canary.done_at == 3 and engine.found == []
    tokens = engine.tokens["a"]
    found = engine.run(("a", 11, [5]), ("b", 11, [6]), known={0: Known(10, extended(0, tokens[:11], 0))})
    assert [(one.kind, one.position, one.request) for one in found] == [(ViolationKind.KNOWN, 10, "a")]


def test_unused_slot_may_be_overwritten() -> None:
    engine, canary = perturbed(Perturbation.UNUSED)
    assert canary.done_at == 3 and engine.found == []
    assert (canary.labels == 3).any()


def test_copy_that_lands_one_page_off_is_found() -> None:
    engine, canary = perturbed(Perturbation.COPY)
    copied(canary, "kv", [*range(12, 20)], "host", [*range(8, 16)])
    assert canary.done_at
    copied(canary, "host", [*range(8, 16)], "kv", [*range(40, 48)])
    engine.give("a", [10, 11])
    assert [one.kind for one in engine.run(("a", 11, [5]))] == [ViolationKind.NEVER]


# A captured launch


class Replayed(Engine):
    """Each launch is a replay from words, token ids, positions and slots at fixed places; on a GPU, of a CUDA graph."""

    def capture(self, requests: int, tokens: int) -> None:
        self.requests = requests
        self.words = self.canary.fixed_words(requests)
        self.ids = torch.zeros(tokens, dtype=torch.int32, device=DEVICE)
        self.positions = torch.zeros(tokens, dtype=torch.int64, device=DEVICE)
        self.new_slots = torch.full((tokens,), -1, dtype=torch.int64, device=DEVICE)
        self.graph: Any = None
        if DEVICE == "cuda":
            self._enqueue()  # compiles the kernel, which cannot be done while capturing
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._enqueue()

    def _enqueue(self) -> None:
        self.canary.run_kernel(self.words, self.requests, 2, self.ids, self.positions)

    def hand_over(self, batch: Pass) -> None:
        tokens = len(batch.input_ids)
        self.ids[:tokens], self.positions[:tokens] = batch.input_ids, batch.positions
        places = batch.places[0]
        assert isinstance(places, Places)
        self.new_slots[:tokens] = places.new_slots
        fixed = batch._replace(places=[places._replace(new_slots=self.new_slots)])
        staged = self.canary.stage(fixed, padded_to=self.requests)
        staged.slot.upload_to(self.words, staged.used)
        if self.graph is None:
            self._enqueue()
        else:
            self.graph.replay()


def test_launch_that_is_replayed_sees_what_one_by_one_is_seen() -> None:
    engine = Replayed(BLOCKS)
    engine.capture(4, 32)
    engine.give("a", range(3, 9))
    engine.give("b", range(20, 26))
    assert engine.run(("a", 0, range(1, 10)), ("b", 0, range(70, 76))) == []
    assert engine.run(("a", 9, [11]), ("b", 6, [12])) == []
    assert engine.run(("b", 7, [12])) == []
    engine.give("a", [21], 1)
    assert [(one.position, one.slot) for one in engine.run(("a", 10, [5]), ("b", 8, [6]))] == [(4, 84)]


@pytest.mark.gpu
def test_launch_is_captured_and_waits_for_nothing() -> None:
    engine = Replayed(BLOCKS)
    engine.capture(4, 32)
    assert engine.graph is not None
    engine.give("a", range(3, 9))
    assert engine.run(("a", 0, [1, 2, 3])) == []
    torch.cuda.set_sync_debug_mode("error")
    try:
        engine.graph.replay()
        engine.canary.poll()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# The host's side


def test_ring_keeps_the_last_ones_and_counts_what_was_lost() -> None:
    engine = started(ring=2)
    engine.give("a", [51], 4)
    for length in (10, 11, 12, 13):
        engine.launch(("a", length, [5]))
    found = engine.poll()
    assert [one.launch for one in found] == [5, 6]
    assert engine.canary.ring.lost == 2


def test_violation_that_is_half_written_is_taken_later() -> None:
    engine = started()
    engine.give("a", [51], 4)
    engine.launch(("a", 10, [5]))
    default_streams(DEVICE).synchronize()
    ring = engine.canary.ring
    kept = ring.entries[0, 6].item()
    ring.entries[0, 6] = 0
    assert engine.canary.poll() == []
    ring.entries[0, 6] = kept
    assert len(engine.poll()) == 1


def test_request_that_was_not_there_needs_its_prefix_named() -> None:
    engine = started()
    engine.give("c", [10, 11])
    engine.tokens["c"] = [1]
    with pytest.raises(ValueError, match="request c was not in a pass before"):
        engine.run(("c", 1, [2]))
    engine.canary.leave("a")
    with pytest.raises(ValueError, match="request a was not"):
        engine.run(("a", 10, [5]))


def test_oldest_row_is_given_up_if_none_is_free() -> None:
    engine = Engine(ROWS, rows=2)
    engine.give("a", [10])
    engine.give("b", [20])
    for name in ("a", "b", "c"):
        engine.rows[name] = 0 if name != "b" else 1
        assert engine.run((name, 0, [1]), fresh=[name]) == []


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="share 0"):
        Canary([ROWS], rows=2, max_requests=2, share=0)
    with pytest.raises(ValueError, match="2 rows for 3"):
        Canary([ROWS], rows=2, max_requests=3)
    engine = started()
    nothing = torch.zeros(0, dtype=torch.int32)
    batch = Pass([], np.zeros(0, dtype=np.int64), nothing, nothing, [], {})
    with pytest.raises(ValueError, match="0 requests"):
        engine.canary.launch(batch)
