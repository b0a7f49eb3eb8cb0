"""Candidates for eviction: the least recently used first, and no longer list than there are nodes."""

from kvref.eviction_queue import MAX_STALE, EvictionQueue
from kvref.tree_node import TreeNode


def node(last_access: int) -> TreeNode:
    made = TreeNode([], [], None)
    made.last_access = last_access
    return made


def test_the_least_recently_used_comes_first_even_if_it_was_used_since_it_was_queued() -> None:
    queue = EvictionQueue(lambda _: True)
    first, second, third = nodes = [node(1), node(2), node(3)]
    for one in reversed(nodes):
        queue.offer(one)
    first.last_access = 4
    assert [queue.pop(), queue.pop(), queue.pop(), queue.pop()] == [second, third, first, None]


def test_who_may_not_go_leaves_the_queue_until_it_is_offered_again() -> None:
    barred: set[TreeNode] = set()
    queue = EvictionQueue(lambda one: one not in barred)
    only = node(1)
    queue.offer(only)
    barred.add(only)
    assert queue.pop() is None
    barred.clear()
    assert queue.pop() is None
    queue.offer(only)
    assert queue.pop() is only


def test_who_is_not_queued_can_be_forgotten() -> None:
    queue = EvictionQueue(lambda _: True)
    stays = node(1)
    queue.offer(stays)
    queue.forget(node(2))
    assert queue.pop() is stays


def test_nodes_that_left_the_tree_do_not_pile_up() -> None:
    queue = EvictionQueue(lambda _: True)
    stays = node(0)
    queue.offer(stays)
    for number in range(1, 10 * MAX_STALE):
        leaves = node(number)
        queue.offer(leaves)
        queue.forget(leaves)
        assert len(queue._heap) <= MAX_STALE + 4
    assert queue.pop() is stays
    assert queue.pop() is None
