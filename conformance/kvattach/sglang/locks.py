"""Hooks into SGLang's tree: the pages that it publishes, and the locks on its paths.

A lock does not name its owner, so the hooks take the function that is running for it. The lock of a request is
transferred to the request when it is first launched.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from kvattach.sglang.residency import Lock
from kvattach.sglang.rows import Rows
from kvattach.sglang.view import KV, NEW, STATES, WINDOW, Ids, Span
from kvspec.memory.events import Publish, Share, Transfer
from kvspec.memory.events import Release as Released

Before = tuple[list[Any], list[Any], list[int]]
"""A path before its locks change: its nodes, their tensors, and the number of locks on each in each pool."""


class Locks(Rows):
    """Follows what the tree publishes, and its locks."""

    _window = 0
    """The tokens of a window; 0: there is none."""
    _shares = False
    """Whether pages come to nodes that are locked: loaded from the host, or of a window."""
    _launched = 0
    """The names of locks and the launches with rejected drafts so far."""

    def _lock_hooks(self, owner: Any) -> None:
        before: Callable[..., Any] = lambda _, node, *__, **___: self._path(node)  # noqa: E731
        for name, sign in (("inc_lock_ref", 1), ("dec_lock_ref", -1)):
            self.hooks.hook(owner, name, before=before, after=partial(self._locks, sign))
        if hasattr(owner, "dec_swa_lock_only"):
            self.hooks.hook(owner, "dec_swa_lock_only", before=before, after=partial(self._locks, 0))

    # Published pages

    def _publish(self, named: Any, planned: bool = False) -> None:
        """Publish the pages on the path to a node that the tree did not have before."""
        self._publish_path(self._tree.path(named), planned)

    def _publish_path(self, path: list[Any], planned: bool = False, key: Any = None) -> None:
        """Publish the pages on a path that the tree did not have before; from now on the tree holds them.

        `key` was inserted, if any.
        """
        tree = self._tree
        spots, lengths = tree.spots(path), [tree.length(node) for node in path]
        giver = next(who for who in reversed(self._who) if not who.startswith(("write", "load", "lock")))
        locks = self._locks_on(path) if self._shares else []

        def published(*values: Any) -> None:
            pages = [*tree.pages_of(path, values)]
            if key is not None:
                tree.learns(key, [page for part in pages[:: len(tree.pools)] for page in part], self._keys[KV])
            parts, start = iter(pages), 0
            for at, (spot, length) in enumerate(zip(spots, lengths, strict=True)):
                held = [(who, low) for who, low, count in locks if at < count]
                for pool in tree.pools:
                    self._publish_node(spot, held, start, pool, next(parts), None if planned else giver)
                start += length

        self.hooks.later(published, *tree.values(path))

    def _locks_on(self, path: list[Any]) -> list[tuple[str, int | None, int]]:
        """The locks on nodes of a path: holder, first token with a locked window, and how many nodes it locks."""
        counts = self._tree.common(path, [lock.node for lock in self._locked])
        return [(lock.who, lock.low, count) for lock, count in zip(self._locked, counts, strict=True)]

    def _publish_node(
        self, spot: Any, held: list[tuple[str, int | None]], start: int, pool: str, pages: Ids, giver: str | None
    ) -> None:
        """The tree has these pages, from `giver`; `None`: they are still to be written. `held` are the node's locks."""
        keys = self._keys[pool]
        fresh = [index for index, page in enumerate(pages) if page not in keys]
        if not fresh:
            return
        # A node has one state, that of its end.
        labels = self._tree.labels(spot)[-1:] if pool == STATES else self._tree.labels(spot)
        new, names = [pages[index] for index in fresh], [labels[index] for index in fresh]
        keys.update(zip(new, names, strict=True))
        self.hooks.emit(Publish(pool, [*new], names, names, planned=giver is None))
        for who, low in held:
            if pool == KV or (low is not None and start >= low):
                self.hooks.emit(Share(who, pool, [*new], names))
        if giver is not None:
            ready = [page for page in new if page in self._fresh[pool]]
            self._fresh[pool].difference_update(ready)
            for who, given in ((NEW, ready), (giver, [page for page in new if page not in ready])):
                if given:
                    self.hooks.emit(Released(who, pool, [*given]))

    def _inserted(self, _: None, answer: Any, __: Any, asked: Any, *___: Any, **____: Any) -> None:
        """A key was inserted. The oldest releases pass the key itself; later ones pass it as a field."""
        if self._of_no_row("insert", getattr(asked, "value", None)):
            return
        key = getattr(asked, "key", asked)
        self._publish_path(self._tree.inserted(getattr(answer, "last_device_node", None), key), key=key)

    # Locks

    def _path(self, named: Any) -> Before:
        """A path, its values, and the numbers of locks on its nodes in each pool before they change."""
        if self._who[-1].startswith("load "):
            self._publish(named, planned=True)
        tree, path = self._tree, self._tree.path(named)
        return path, tree.values(path), [tree.locks(node, pool) for node in path for pool in tree.pools]

    def _locks(self, sign: int, had: Before, _: Any, __: Any, named: Any, *___: Any, **____: Any) -> None:
        """The locks on a path have changed: one more (1), one less (-1), or one less on window pages only (0)."""
        (path, values, before), tree = had, self._tree
        who, node = self._holder(named), tree.node(named)
        lock = Lock(who, node, self._window_begins(path)) if sign > 0 else self._lock_of(who, node)
        changes = [
            self._requested(sign, lock, at, pool) if tree.opaque else tree.locks(at, pool) - count
            for (at, pool), count in zip(product(path, tree.pools), before, strict=True)
        ]
        self.hooks.later(partial(self._locked_for, who, path, changes), *values)
        if lock is None or not path:
            return
        if sign > 0:
            self._locked.append(lock)
        elif sign < 0:
            self._locked.remove(lock)
            if who.startswith("lock "):
                self._unused.append(who)
        else:
            lock.low = None

    def _locked_for(self, who: str, path: list[Any], changes: list[int], *values: Any) -> None:
        """A holder has so many locks more on each node of a path in each pool."""
        tree = self._tree
        for pool, locked, pages in zip(tree.pools * len(path), changes, tree.pages_of(path, values), strict=True):
            names = [self._keys[pool].get(page, "") for page in pages]
            for _again in range(locked if pages else 0):
                self.hooks.emit(Share(who, pool, [*pages], names))
            for _again in range(-locked if pages else 0):
                self.hooks.emit(Released(who, pool, [*pages]))

    def _requested(self, sign: int, lock: Lock | None, node: Span, pool: str) -> int:
        """The change of the locks on a node of an opaque tree, as it was requested of its core."""
        if pool == KV:
            return sign
        if pool == STATES:
            # A lock covers the state of its own node only; it is released with the window.
            return sign if lock is not None and node.id == lock.node else 0
        covered = lock is not None and lock.low is not None and node.start >= lock.low
        return (sign or -1) if covered else 0

    def _window_begins(self, path: list[Any]) -> int | None:
        """The token from which a lock on a path covers window pages: the fewest last nodes that hold a window."""
        lengths = [self._tree.length(node) for node in path]
        low = stop = sum(lengths)
        while lengths and stop - low < self._window:
            low -= lengths.pop()
        return low if self._window else None

    def _holder(self, named: Any) -> str:
        """The holder of a lock that changes: that of the running function, or the transfer of the node."""
        who, node = self._who[-1], getattr(named, "id", named)
        if who == "loading":
            return f"load {node}"
        # One backup may lock several nodes, each of which is acknowledged for itself.
        return f"write {node}" if who.startswith(("write ", "writing")) else who

    def _next_lock(self) -> str:
        if self._unused:
            return self._unused.pop()
        self._launched += 1
        return f"lock {self._launched}"

    def _owns(self, _: None, lock: Any, *__: Any, **___: Any) -> None:
        if lock is not None:
            lock.kvspec_owner = self._who[-1]

    def _adopt(self, req: Any, name: str) -> None:
        """Transfer the lock of a request to the request, from the function that took it."""
        owner = self._adopted(req, name)
        if owner is not None:
            self.hooks.emit(Transfer(owner, name))

    def _adopted(self, req: Any, name: str) -> str | None:
        """A request has a lock from now on; the function that took it, unless the request has it already."""
        lock = getattr(req, "lock", None) or getattr(self._slot(req), "lock", None)
        owner = getattr(lock, "kvspec_owner", name)
        if lock is None or owner == name:
            return None
        self._passes(owner, name, lock)
        return owner

    def _adopt_path(self, req: Any, name: str) -> None:
        """The same for a lock that only its node names."""
        lock = self._lock_of(NEW, self._tree.node(req.last_node))
        if lock is not None:
            lock.who = name
            path = self._tree.path(req.last_node)
            lengths = [self._tree.length(node) for node in path]
            self.hooks.later(partial(self._path_passed, name, lock.low, path, lengths), *self._tree.values(path))

    def _path_passed(self, name: str, low: int | None, path: list[Any], lengths: list[int], *values: Any) -> None:
        """A lock passes to a request: on all pages of a path, on windows from token `low` on, and on the last state."""
        passed: dict[str, Ids] = {pool: [] for pool in self._tree.pools}
        parts, start = self._tree.pages_of(path, values), 0
        for left, length in zip(range(len(path), 0, -1), lengths, strict=True):
            covered = {KV: True, WINDOW: low is not None and start >= low, STATES: left == 1}
            for pool in self._tree.pools:
                pages = next(parts)
                if covered[pool]:
                    passed[pool] += pages
            start += length
        for pool, pages in passed.items():
            if pages:
                self.hooks.emit(Transfer(NEW, name, pool, [*pages]))

    def _lock_of(self, who: str, node: Any) -> Lock | None:
        return next((lock for lock in self._locked if lock.who == who and lock.node == node), None)
