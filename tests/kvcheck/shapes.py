"""Shapes of traces of the memory level whose cost may grow faster than their size: each as large as is asked for.

A shape is legal but where its name says that something is found. Its file grows as its size does.
"""

from collections.abc import Callable, Iterator

from kvspec.memory import Pool
from kvspec.memory.events import (
    Announce,
    Begin,
    Count,
    Decide,
    Deliver,
    Drop,
    End,
    EndHolder,
    Idle,
    Map,
    MemoryEvent,
    Publish,
    Release,
    Reserve,
    Share,
    Take,
    Transfer,
    Unify,
    Unmap,
    Use,
    Wait,
)

Shape = Callable[[int], Iterator[MemoryEvent]]

SHAPES: dict[str, tuple[dict[str, Pool], Shape]] = {}
"""Name -> the pools and the events of a shape."""

MANY = 1 << 20
KV = {"kv": Pool(num_pages=MANY)}
PAGED = {"kv": Pool(page_size=16, num_pages=MANY)}
UNITS = {"kv": Pool(page_size=1 << 18, num_pages=MANY, label_size=1)}
LONG = {"kv": Pool(page_size=1 << 18, num_pages=MANY)}
DISK = {"disk": Pool(page_size=16, keyed=True)}


def shape(pools: dict[str, Pool]) -> Callable[[Shape], Shape]:
    """A shape in such pools."""

    def add(made: Shape) -> Shape:
        SHAPES[made.__name__] = pools, made
        return made

    return add


def page(
    number: int, start: int = 0, stop: int = 1, *, holder: str | None = "a", labels: list[str] | None = None
) -> Use:
    """Slots of one page."""
    return Use(pool="kv", pages=[number], start=start, stop=stop, holder=holder, labels=labels)


# Events that order operations


@shape(KV)
def a_chain_of_waits_over_many_streams(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, f"s{k}")
        yield Wait(f"s{k + 1}", on=f"s{k}")


@shape(KV)
def a_chain_of_waits_for_operations(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, f"s{k}")
        yield Wait(f"s{k + 1}", id=k)


@shape(KV)
def a_chain_of_after(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, None, after=[k - 1] * (k > 0))


@shape(KV)
def a_chain_of_after_over_two_streams(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, f"s{k % 2}", after=[k - 1] * (k > 0))


@shape(KV)
def one_operation_after_many(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k)
    yield Begin(n, after=[*range(n)])


@shape(KV)
def many_streams_in_flight(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, f"s{k}")


@shape(KV)
def many_streams_in_flight_that_read_one_page(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    yield Begin("w", "host", writes=[page(1)])
    for k in range(n):
        yield Begin(k, f"s{k}", reads=[page(1)])


@shape(KV)
def operations_on_two_streams_that_nothing_ends(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, f"s{k % 2}")


@shape(KV)
def operations_on_no_stream_that_nothing_ends(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k)


@shape(KV)
def operations_on_two_streams_that_use_pages_and_nothing_ends(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    for k in range(n):
        yield Begin(k, f"s{k % 2}", writes=[page(1 + k)])


@shape(KV)
def many_streams_and_then_one_that_goes_on(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, f"s{k}")
        yield End(k)
    for k in range(n):
        yield Begin(n + k, "s0")
        yield End(n + k)


@shape(KV)
def many_streams_that_all_wait_for_each(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, f"s{k}")
    for k in range(n):
        yield Wait(f"s{n - 1}", on=f"s{k}")
        yield Wait(f"s{k}", on=f"s{n - 1}")


@shape(KV)
def operations_of_many_streams_that_end_in_order(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, f"s{k}")
    for k in range(n):
        yield End(k)


@shape(KV)
def operations_of_one_stream_that_end_at_once(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, "s")
    yield End(n - 1)
    for k in range(n - 1):
        yield End(k)


@shape(KV)
def the_host_waits_again_and_again(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, f"s{k}")
    for _ in range(n):
        yield Wait("host", id=0)


@shape(KV)
def one_rank_decides_far_ahead_of_another(n: int) -> Iterator[MemoryEvent]:
    for host in "pd":
        for k in range(n):
            yield Decide("tp", f"{k}", host=host)


@shape(KV)
def many_ranks_decide_between_idle_moments(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Decide(f"group {k % 250}", "x", host=f"{k // 250 % 250}")
    for _ in range(n):
        yield Idle()


@shape(KV)
def routers_learn_of_blocks_that_no_name_finds(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Announce("GPU", [f"{k}"], f"{k - 1}" if k else None, pool="kv", batch=k)
    for k in range(n):
        yield Announce("GPU", removed=[f"{k}"], batch=n + 2 * k)


@shape(KV)
def reads_end_again_and_again(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, f"s{k}")
    for k in range(n):
        yield End(k, "reads")


@shape(KV)
def many_streams_that_come_after_one_that_nothing_ends(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, "s")
    for k in range(n):
        yield Begin(n + k, after=[n - 1])


@shape(KV)
def many_streams_that_come_after_eight_that_nothing_ends(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, f"s{k % 8}")
    for k in range(n):
        yield Begin(n + k, f"t{k}", after=[n - 1 - one for one in range(8)])


@shape(KV)
def many_streams_that_wait_for_two_that_nothing_ends(n: int) -> Iterator[MemoryEvent]:
    yield Begin("other", "u")
    for k in range(n):
        yield Begin(k, "s")
    for k in range(n):
        yield Wait(f"t{k}", on="u")
        yield Wait(f"t{k}", on="s")
        yield Begin(n + k, f"t{k}")


@shape(KV)
def many_hosts(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, f"s{k}", host=f"h{k}")
        yield End(k, host=f"h{k}")


# Labels


@shape(KV)
def a_chain_of_unify(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Unify(f"l{k}", f"l{k + 1}")
    for _ in range(n):
        yield Unify("l0", "x0")


@shape(KV)
def a_chain_of_unify_backwards(n: int) -> Iterator[MemoryEvent]:
    for k in range(n, 0, -1):
        yield Unify(f"l{k - 1}", f"l{k}")
    for k in range(n):
        yield Unify("l0", f"l{k}")


@shape(KV)
def one_label_is_many(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Unify("a", f"l{k}")
        yield Unify(f"m{k}", "a")


@shape(LONG)
def unify_of_ranges(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Unify("a", f"l{k}", 1 + k)


@shape(LONG)
def unify_of_ranges_of_two_labels(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Unify(f"l{k}", f"l{k + 1}", 1 + k)
    for k in range(n):
        yield Unify("l0", f"m{k}", 1 + k)


@shape(LONG)
def unify_of_ranges_that_shrink(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Unify("a", f"l{k}", n - k)
    for k in range(n):
        yield Unify(f"l{k}", "b", n - k)


# Holders


@shape(KV)
def tables_change_hands(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Map(f"t{k}", f"h{k}", "kv")
    for k in range(n):
        yield Transfer(f"h{k}", f"i{k}")


@shape(PAGED)
def one_table_changes_hands_again_and_again(n: int) -> Iterator[MemoryEvent]:
    yield Take("h0", "kv", [(1, n)])
    yield Map("t", "h0", "kv", 0, [(1, n)])
    for k in range(n):
        yield Transfer(f"h{k}", f"h{k + 1}")


@shape(KV)
def a_run_is_taken_and_given_back_again_and_again(n: int) -> Iterator[MemoryEvent]:
    for _ in range(n):
        yield Take("a", "kv", [(1, n)])
        yield Release("a", "kv", [(1, n)])


@shape(KV)
def pages_change_hands_one_by_one(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    for k in range(n):
        yield Transfer("a", "b", "kv", [1 + k])


@shape(KV)
def a_page_changes_hands_that_has_many_names(n: int) -> Iterator[MemoryEvent]:
    yield Take("h0", "kv", [1])
    for k in range(n):
        yield Publish("kv", [1], [f"k{k}"], planned=True, writer="h0")
    for k in range(n):
        yield Transfer(f"h{k}", f"h{k + 1}", "kv", [1])


@shape({f"p{k}": Pool(num_pages=4) for k in range(64)})
def holders_end_where_there_are_pools(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield EndHolder(f"h{k}")


@shape(KV)
def idle_with_many_holders(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Take(f"h{k}", "kv", [1 + k])
    keepers = [f"h{k}" for k in range(n)]
    yield Idle(keepers)
    for _ in range(n):
        yield Idle(keepers[:1])


@shape(KV)
def idle_with_many_keepers(n: int) -> Iterator[MemoryEvent]:
    yield Take("h0", "kv", [1])
    yield Idle([f"h{k}" for k in range(n)])
    for _ in range(n):
        yield Idle(["h0"])


@shape(KV)
def idle_with_a_leak_that_was_found(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Take(f"h{k}", "kv", [1 + k])
    for _ in range(n):
        yield Idle()


@shape(KV)
def one_page_with_many_holders(n: int) -> Iterator[MemoryEvent]:
    yield Take("h0", "kv", [1])
    for k in range(1, n):
        yield Share(f"h{k}", "kv", [1])
    for k in range(n):
        yield Release(f"h{k}", "kv", [1])


@shape(KV)
def one_holder_more_on_a_page_that_many_share_is_found(n: int) -> Iterator[MemoryEvent]:
    yield Take("h0", "kv", [1])
    for k in range(1, n):
        yield Share(f"h{k}", "kv", [1])
    for k in range(n):
        yield Release(f"x{k}", "kv", [1])


@shape(KV)
def many_pages_with_one_holder_more_each_time(n: int) -> Iterator[MemoryEvent]:
    yield Take("h0", "kv", [(1, n)])
    for k in range(n):
        yield Release("h0", "kv", [1 + k])
        yield Take("h0", "kv", [1 + k])


@shape(KV)
def one_page_is_pinned_by_many(n: int) -> Iterator[MemoryEvent]:
    yield Take("h0", "kv", [1])
    for k in range(1, n):
        yield Share(f"h{k}", "kv", [1], pin=True)
    for k in range(1, n):
        yield Release(f"h{k}", "kv", [1])


@shape(KV)
def pages_are_reserved_for_many(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Reserve(f"h{k}", "kv", 1)
    for k in range(n):
        yield Take(f"h{k}", "kv", [1 + k])


@shape(KV)
def pages_are_reserved_for_many_while_others_take(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Reserve(f"h{k}", "kv", 1)
    for k in range(n):
        yield Take("a", "kv", [1 + k])


@shape(KV)
def single_pages_change_hands_together_again_and_again(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Take("h0", "kv", [1 + k])
    for k in range(n // 8):
        yield Transfer(f"h{k}", f"h{k + 1}")


@shape(KV)
def many_tables_change_hands_again_and_again(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Map(f"t{k}", "h0", "kv")
    for k in range(n):
        yield Transfer(f"h{k}", f"h{k + 1}")


# Counts


@shape(KV)
def counts_of_many_pages(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Take(f"h{k % 3}", "kv", [1 + k])
    for _ in range(n):
        yield Count("kv", held=[(1, n)])


@shape(KV)
def pages_are_counted_each_time_that_one_changes_hands(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    for k in range(n):
        yield Release("a", "kv", [1 + k])
        yield Count("kv", free=[1 + k, (n + 1, MANY - n)], held=[(1, k), (2 + k, n - k - 1)])
        yield Take("b", "kv", [1 + k])
        yield Count("kv", held=[(1, n)])


@shape(KV)
def counts_of_free_pages_in_runs(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [2 * k + 1 for k in range(n)])
    for _ in range(n):
        yield Count("kv", free=[(2 * n, MANY - 2 * n)])


@shape(KV)
def a_long_count(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [2 * k + 1 for k in range(n)])
    yield Count("kv", held=[2 * k + 1 for k in range(n)])


@shape(KV)
def counts_of_references_of_a_page_that_many_share(n: int) -> Iterator[MemoryEvent]:
    yield Take("h0", "kv", [1])
    for k in range(1, n):
        yield Share(f"h{k}", "kv", [1])
    for _ in range(n):
        yield Count("kv", references={1: n})


@shape(KV)
def counts_that_miss_pages_are_found(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    for k in range(n):
        yield Count("kv", held=[(1, 1 + k % 2)])


@shape(KV)
def a_list_that_is_wrong_again_and_again_is_found(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    for k in range(n):
        yield Count("kv", cached=[(1, n)] if k % 2 else [(1, n - 1)])


@shape(KV)
def a_list_that_is_wrong_every_other_time_is_found(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    for k in range(n):
        yield Count("kv", cached=[(1, n)] if k % 2 else [])


@shape(KV)
def a_list_that_has_pages_twice_is_found(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    yield Count("kv", held=[(1, n), *range(1, n + 1)])
    for k in range(n):
        yield Count("kv", held=[(1, n), (1, 1 + k % 3)])


@shape(KV)
def a_free_list_that_lacks_a_page_is_found(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    for k in range(n):
        yield Count("kv", free=[(n + 2 + k % 2, MANY - n - 2 - k % 2)])


@shape(KV)
def counts_of_references_that_stay_wrong_are_found(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    for k in range(n):
        yield Count("kv", references={1 + k: 2})
        yield Count("kv", held=[(1, n)])


# Names


@shape(LONG)
def many_keys_on_one_page_that_is_written(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Publish("kv", [1], [f"k{k}"], ["l"], planned=True)
    for k in range(n):
        yield Begin(k, "host", writes=[page(1, k, k + 1, labels=["l"])])


@shape(LONG)
def a_page_with_many_names_is_overwritten_with_something_else(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Publish("kv", [1], [f"k{k}"], [f"l{k}"], planned=True)
    for k in range(n):
        yield Begin(k, "host", writes=[page(1, labels=[f"m{k}"])])


@shape(KV)
def a_page_with_many_names_is_shared_and_let_go(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Publish("kv", [1], [f"k{k}"], ["l"], planned=True)
    yield Begin("w", "host", writes=[page(1, labels=["l"])])
    yield Release("a", "kv", [1])
    for _ in range(n):
        yield Share("b", "kv", [1])
        yield Release("b", "kv", [1])


@shape(KV)
def keys_of_one_name_are_dropped(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    yield Begin("w", "host", writes=[Use(pool="kv", pages=[(1, n)], holder="a", labels=["l"] * n)])
    yield Publish("kv", [(1, n)], ["k"] * n, ["l"] * n)
    for k in range(n):
        yield Drop("kv", [1 + k], ["k"])


@shape(KV)
def keys_of_one_page_are_dropped(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Publish("kv", [1], [f"k{k}"], planned=True)
    for k in range(n):
        yield Drop("kv", [1], [f"k{k}"])


@shape(KV)
def a_plan_with_many_names_loses_its_holder_again_and_again(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Publish("kv", [1], [f"k{k}"], planned=True, writer="a")
    for k in range(n):
        yield Share(f"h{k}", "kv", [1])
        yield Release(f"h{k}", "kv", [1])


@shape(DISK)
def a_storage_is_written_under_many_names(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Publish("disk", [f"p{k}"], [f"p{k}"], [f"l{k}"], planned=True)
        yield Begin(k, "host", writes=[Use(pool="disk", pages=[f"p{k}"], labels=[f"l{k}"])])


# Tables


@shape(KV)
def many_tables_on_one_page(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Map(f"t{k}", "a", "kv", 0, [1])
    for k in range(n):
        yield Unmap(f"t{k}")


@shape(KV)
def holders_of_one_page_leave_with_their_tables(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    yield Begin("w", "host", writes=[page(1)])
    for k in range(n):
        yield Share(f"h{k}", "kv", [1])
        yield Map(f"t{k}", f"h{k}", "kv", 0, [1])
        yield Begin(k, "s", reads=[Use(f"t{k}")])
    for k in range(n):
        yield Release(f"h{k}", "kv", [1])
        yield Unmap(f"t{k}")


@shape(LONG)
def many_tables_on_one_page_that_is_written(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Map(f"t{k}", "a", "kv", 0, [1])
    for k in range(n):
        yield Begin(k, "s", writes=[Use("t0", start=k, stop=k + 1)])


@shape(KV)
def one_table_is_mapped_and_unmapped(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    yield Map("t", "a", "kv", 0, [(1, n)])
    for k in range(n - 1, 0, -1):
        yield Unmap("t", k)


@shape(KV)
def a_window_moves_over_a_table(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    yield Map("t", "a", "kv", 0, [(1, n)])
    yield Begin("w", "s", writes=[Use("t")])
    for k in range(n - 1):
        yield Unmap("t", k, k + 1)
        yield Release("a", "kv", [1 + k])
        yield Begin(k, "s", reads=[Use("t", start=k + 1)])


@shape(KV)
def one_table_is_read_by_many_streams(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, 2)])
    yield Map("t", "a", "kv", 0, [(1, 2)])
    yield Begin("w", "host", writes=[Use("t")])
    for k in range(n):
        yield Begin(k, f"s{k}", reads=[Use("t")])
        yield End(k)
    for _ in range(n):
        yield Map("t", "a", "kv", 1, [2])


@shape(KV)
def pages_are_remapped_while_nothing_ends(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    yield Begin(0, "s")
    for k in range(n):
        yield Map("t", "a", "kv", 0, [1])
        yield Begin(k + 1, "s", writes=[Use("t")])
        yield Unmap("t")


@shape(KV)
def many_tables_on_one_page_are_read_beside_another_stream(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    yield Begin("w", "host", writes=[page(1)])
    yield Begin("x", "u")
    for k in range(n):
        yield Map(f"t{k}", "a", "kv", 0, [1])
        yield Begin(k, "s", reads=[Use(f"t{k}")])


@shape(LONG)
def many_tables_on_one_page_are_written_beside_another_stream(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    yield Begin("x", "u")
    for k in range(n):
        yield Map(f"t{k}", "a", "kv", 0, [1])
        yield Begin(k, "s", writes=[Use(f"t{k}", start=k, stop=k + 1)])
        yield End(k)


def changed(n: int) -> Iterator[MemoryEvent]:
    """A table of which a stream has read all before all of it changed."""
    all_of_it = Use(pool="kv", pages=[(1, n)], holder="a")
    yield Take("a", "kv", [(1, n)])
    yield Map("t", "a", "kv", 0, [(1, n)])
    yield Begin("w", "host", writes=[all_of_it])
    yield Begin("r", "s", reads=[Use("t")])
    yield Begin("again", "s", writes=[all_of_it])


@shape(KV)
def a_table_that_changed_is_read_page_by_page_from_its_end(n: int) -> Iterator[MemoryEvent]:
    yield from changed(n)
    for k in range(n - 1, -1, -1):
        yield Begin(k, "s", reads=[Use("t", start=k, stop=k + 1)])


@shape(KV)
def the_first_page_of_a_table_that_changed_is_read_again_and_again(n: int) -> Iterator[MemoryEvent]:
    yield from changed(n)
    for k in range(n):
        yield Begin(k, "s", reads=[Use("t", start=0, stop=1)])
        yield End(k)


@shape(KV)
def a_table_that_changed_is_unmapped_page_by_page(n: int) -> Iterator[MemoryEvent]:
    yield from changed(n)
    for k in range(n - 1, 0, -1):
        yield Unmap("t", k)


# Content


@shape(LONG)
def a_long_page_is_written_forwards(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Begin(k, "host", writes=[page(1, k, k + 1, labels=[f"l{k % 2}"])])


@shape(LONG)
def a_long_page_is_written_backwards(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n - 1, -1, -1):
        yield Begin(k, "host", writes=[page(1, k, k + 1, labels=[f"l{k % 2}"])])


@shape(LONG)
def a_long_page_is_written_with_gaps(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(0, 2 * n, 2):
        yield Begin(k, "host", writes=[page(1, k, k + 1, labels=["l"])])
    for k in range(0, 2 * n, 2):
        yield Begin(k, "host", reads=[page(1, k, k + 1, labels=["l"])])


@shape(LONG)
def a_long_page_is_rewritten_in_the_middle(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Begin(k, "host", writes=[page(1, k, k + 1, labels=[f"l{k % 2}"])])
    for k in range(n):
        yield Begin(n + k, "host", writes=[page(1, k, k + 1, labels=[f"m{k % 2}"])])


@shape(UNITS)
def a_long_page_of_units_is_read_again_and_again(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    yield Map("t", "a", "kv", 0, [1])
    for k in range(n):
        yield Begin(
            k, "s", reads=[Use("t", stop=k)] * (k > 0), writes=[Use("t", start=k, stop=k + 1, labels=[f"l{k}"])]
        )
        yield End(k)


@shape(LONG)
def a_long_page_is_written_by_one_operation(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    yield Begin("w", "s", writes=[page(1, k, k + 1, labels=[f"l{k % 2}"]) for k in range(n)])


@shape(LONG)
def an_operation_writes_the_same_slots_often(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    yield Begin("w", "s", writes=[page(1, 0, 2, labels=["l"]) for _ in range(n)])


@shape(LONG)
def an_operation_contradicts_itself_often_and_is_found(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    yield Begin("w", "s", writes=[page(1, 0, 2, labels=[f"l{k % 2}"]) for k in range(n)])


# Operations that fail, and results


@shape(KV)
def operations_fail_while_many_are_in_flight(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    for k in range(n):
        yield Begin(k, "s", writes=[page(1 + k)])
    for k in range(n):
        yield End(k, unwritten=[page(1 + k)])


@shape(KV)
def operations_fail_of_which_each_reads_what_the_last_one_wrote(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    for k in range(n):
        yield Begin(k, "s", reads=[page(k)] * (k > 0), writes=[page(1 + k)])
    for k in range(n):
        yield End(k, unwritten=[page(1 + k)])


@shape(KV)
def operations_fail_that_rewrite_one_page(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Begin(k, "s", reads=[page(1)] * (k > 0), writes=[page(1)])
    for k in range(n):
        yield End(k, unwritten=[page(1)])


@shape(KV)
def operations_fail_whose_table_many_read(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    yield Map("t", "a", "kv", 0, [(1, n)])
    for k in range(n):
        yield Begin(k, "s", writes=[Use("t", start=k, stop=k + 1)])
    for k in range(n):
        yield Begin(n + k, "s", reads=[Use("t")])
    for k in range(n):
        yield End(k, unwritten=[page(1 + k)])


@shape(KV)
def operations_fail_of_which_one_batch_has_read(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, 2 * n)])
    for k in range(n):
        yield Begin(k, "s", writes=[page(1 + k)])
    reads = [page(1 + k, holder=f"h{k}") for k in range(n)]
    yield Begin("batch", "s", reads, [page(1 + n + k, holder=f"h{k}") for k in range(n)])
    for k in range(n):
        yield End(k, unwritten=[page(1 + k)])


@shape(LONG)
def operations_fail_that_write_one_page_apart(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Begin(k, "s", writes=[page(1, k, k + 1)])
    for k in range(n):
        yield End(k, unwritten=[page(1, k, k + 1)])


@shape(KV)
def one_operation_fails_for_many_pages(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [(1, n)])
    yield Begin("w", "s", writes=[Use(pool="kv", pages=[(1, n)], holder="a")])
    yield End("w", unwritten=[page(1 + k) for k in range(n)])


@shape(KV)
def many_results_are_delivered(n: int) -> Iterator[MemoryEvent]:
    for k in range(n):
        yield Begin(k, "s")
        yield Deliver(k, f"h{k}")
    for k in range(n):
        yield End(k)


@shape(KV)
def reads_race_with_many_writes_and_are_found(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Begin(k, f"s{k % 2}", writes=[page(1, labels=["l"])])


@shape(LONG)
def many_rivals_use_one_page_apart(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Begin(k, None, writes=[page(1, k, k + 1, labels=["l"])])


@shape(LONG)
def two_streams_use_one_page_apart(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    for k in range(n):
        yield Begin(k, f"s{k % 2}", writes=[page(1, k, k + 1, labels=["l"])])


# Beside an operation of another stream that is not ordered before


@shape(KV)
def a_page_is_remapped_again_and_again_beside_another_stream(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    yield Begin("x", "u")
    for k in range(n):
        yield Map("t", "a", "kv", 0, [1])
        yield Begin(k, "s", writes=[Use("t")])
        yield Unmap("t")


@shape(KV)
def many_tables_that_were_read_leave_a_page_beside_another_stream(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    yield Begin("w", "host", writes=[page(1)])
    yield Begin("x", "u")
    for k in range(n):
        yield Map(f"t{k}", "a", "kv", 0, [1])
        yield Begin(k, "s", reads=[Use(f"t{k}")])
        yield Unmap(f"t{k}")


@shape(KV)
def a_page_that_many_streams_read_is_used_beside_another_stream(n: int) -> Iterator[MemoryEvent]:
    yield Take("a", "kv", [1])
    yield Begin("w", "host", writes=[page(1)])
    for k in range(n):
        yield Begin(k, f"s{k}", reads=[page(1)])
        yield Wait("z", on=f"s{k}")
    yield Begin("x", "u")
    for k in range(n):
        yield Begin(n + k, "z", reads=[page(1)])
        yield Begin(2 * n + k, "z", writes=[page(1)])


# Names of a page with many labels


def units(n: int) -> Iterator[MemoryEvent]:
    """A page that is written, each slot with a label of its own."""
    yield Take("a", "kv", [1])
    yield Begin("w", "host", writes=[page(1, 0, n, labels=[f"l{k}" for k in range(n)])])


@shape(UNITS)
def a_page_of_units_is_published_for_more_slots_each_time(n: int) -> Iterator[MemoryEvent]:
    yield from units(n)
    for k in range(n):
        yield Publish("kv", [1], ["k"], slots=k + 1)


@shape(UNITS)
def a_page_of_units_is_published_and_dropped_again_and_again(n: int) -> Iterator[MemoryEvent]:
    yield from units(n)
    for k in range(n):
        yield Publish("kv", [1], [f"k{k}"], slots=n)
        yield Drop("kv", [1], [f"k{k}"])


@shape(UNITS)
def the_first_label_of_a_page_is_published_again_and_again(n: int) -> Iterator[MemoryEvent]:
    yield from units(n)
    for _ in range(n):
        yield Publish("kv", [1], ["k"], ["l0"], slots=1)
