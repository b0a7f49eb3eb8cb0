"""Further defects for kvref: each shows only under a rare condition. Thought up by reading kvref alone.

A rare condition is a number that most scenes do not reach (a third launch in flight, a fourth node of the tree), or
several that must meet (an exact fit of a batch that also brings a row).
"""

from tests.mutation.kvref_mutants import Mutant

RARE = [
    # Rows and launches
    Mutant(
        "only the two oldest launches in flight are asked whether they read a row",
        "req_to_token_pool.py",
        "return any(row in reads for reads in self._reads)",
        "return any(row in reads for reads in list(self._reads)[:2])",
    ),
    Mutant(
        "of three rows that one launch withheld the third does not come back with it",
        "req_to_token_pool.py",
        "for row in [row for row in self._withheld if not self.is_read(row)]:",
        "for row in [row for row in self._withheld if not self.is_read(row)][:2]:",
    ),
    Mutant(
        "a batch that brings a row takes it for a free one, too",
        "req_to_token_pool.py",
        "return max(0, brought.count(None) - len(self._free))",
        "return max(0, brought.count(None) - len(self._free) - (brought.count(None) < len(brought)))",
    ),
    Mutant(
        "the third launch in flight still waits for a run that has ended",
        "manager/release.py",
        "        for launch in self.launches:\n            launch.forget(run.name)",
        "        for launch in list(self.launches)[:2]:\n            launch.forget(run.name)",
    ),
    Mutant(
        "a launch of four or more reads the first three rows only",
        "manager/running.py",
        "self.pool.begin_read(reads)",
        "self.pool.begin_read(dict(list(reads.items())[:3]))",
    ),
    Mutant(
        "a stop that drops one accepted token is no stop",
        "manager/running.py",
        "if len(tokens) < accepted:",
        "if len(tokens) < accepted - 1:",
    ),
    Mutant(
        "a resumed turn may overwrite the one position that a launch in flight reads last",
        "manager/prefill.py",
        "if self.pool.read_len(base.req_pool_idx) > prefix_len:",
        "if self.pool.read_len(base.req_pool_idx) > prefix_len + 1:",
    ),
    # Pages and room
    Mutant(
        "an allocation of three or more pages, some freed and some never used, loses one",
        "allocator.py",
        "        self._in_use.update(pages)\n",
        "        self._in_use.update(pages)\n"
        "        self._next_unused += first < self._next_unused < first + count and count > 2\n",
    ),
    Mutant(
        "an exact fit of five or more pages is refused",
        "manager/state.py",
        "pages_short = self.allocator.short_of(pages)",
        "pages_short = self.allocator.short_of(pages) or int(pages == self.allocator.available > 4)",
    ),
    Mutant(
        "a new prompt of four or more whole pages takes one more",
        "allocator.py",
        "return max(0, ceil_pages(length, self.page_size) - held)",
        "return max(0, ceil_pages(length + (not held and length >= 4 * self.page_size), self.page_size) - held)",
    ),
    Mutant(
        "of more than eight freed pages an answer names eight",
        "allocator.py",
        "self._freed.extend(pages)",
        "self._freed.extend([*pages][:8])",
    ),
    Mutant(
        "a resumed turn that keeps three pages and a part asks for a page too many",
        "manager/prefill.py",
        "self.allocator.pages_missing(ceil_pages(prefill.prefix_len, page_size), prefill.seq_len)",
        "self.allocator.pages_missing(\n"
        "                min(ceil_pages(prefill.prefix_len, page_size), max(3, prefill.prefix_len // page_size)),\n"
        "                prefill.seq_len,\n"
        "            )",
    ),
    Mutant(
        "the fourth request of a decode step that needs a page gets none",
        "manager/running.py",
        "if end > len(tables[kv.req_pool_idx]) * page_size:",
        "if end > len(tables[kv.req_pool_idx]) * page_size and len(growing) < 3:",
    ),
    Mutant(
        "a decode step asks for the pages of its first two requests",
        "manager/running.py",
        "                for run in growing\n",
        "                for run in growing[:2]\n",
    ),
    Mutant(
        "an extend asks for the states of its first two requests",
        "manager/prefill.py",
        "states=sum(states.states_missing(prefill.request) for prefill in batch if prefill.row is None)",
        "states=sum([states.states_missing(prefill.request) for prefill in batch if prefill.row is None][:2])",
    ),
    # The prefix store
    Mutant(
        "a match ends after four nodes",
        "radix_cache.py",
        "        while len(pages) < len(key):\n",
        "        for _ in range(4):\n            if len(pages) >= len(key):\n                break\n",
    ),
    Mutant(
        "an edge of four or more pages is compared in its first three",
        "radix_cache.py",
        "    if part == edge:",
        "    if part[:3] == edge[:3] and len(part) == len(edge) > 3:\n        return len(edge)\n    if part == edge:",
    ),
    Mutant(
        "a single page behind three protected ones is not published",
        "radix_cache.py",
        "        if last <= first:\n",
        "        if last <= first + (first > 2):\n",
    ),
    Mutant(
        "an unlock ends after four nodes",
        "radix_cache.py",
        "        while node.parent is not None:\n            node.lock_ref -= 1\n",
        "        for _ in range(4):\n            if node.parent is None:\n                break\n"
        "            node.lock_ref -= 1\n",
    ),
    Mutant(
        "an eviction of ten or more pages ends after nine",
        "radix_cache.py",
        "wanted = self.evictable_size - num_pages",
        "wanted = self.evictable_size - min(num_pages, 9)",
    ),
    Mutant(
        "a node of three or more pages whose last follower was evicted is never evicted",
        "radix_cache.py",
        "        self._leaves.offer(parent)\n",
        "        if len(parent.value) < 3:\n            self._leaves.offer(parent)\n",
    ),
    Mutant(
        "an evicted leaf of five or more pages counts as four",
        "radix_cache.py",
        "        self.evictable_size -= len(leaf.value)\n        self.allocator",
        "        self.evictable_size -= min(len(leaf.value), 4)\n        self.allocator",
    ),
    Mutant(
        "pages behind three known ones are cached as the copy before",
        "radix_cache.py",
        "node = self._add_leaf(node, key[already:], value[already:])",
        "late = already > 2\n"
        "            node = self._add_leaf(node, key[already:], value[already - late : len(value) - late])",
    ),
    Mutant(
        "the third lock on a prefix is not taken back when its holder publishes more",
        "radix_cache.py",
        "        self.dec_lock_ref(kv.last_node)\n        kv.last_node",
        "        if kv.last_node.lock_ref != 4 or len(kv.last_node.children) < 2:\n"
        "            self.dec_lock_ref(kv.last_node)\n"
        "        kv.last_node",
    ),
    Mutant(
        "a queue that clears its stale entries loses the others",
        "eviction_queue.py",
        "self._heap = [entry for entry in self._heap if self._tickets.get(entry[2]) == entry[1]]",
        "self._heap = []",
    ),
    # Sessions
    Mutant(
        "a resume frees two pages of a longer tail",
        "session_cache.py",
        "self.allocator.free(table[orphaned.start : orphaned.stop])",
        "self.allocator.free(table[orphaned.start : min(orphaned.stop, orphaned.start + 2)])",
    ),
    Mutant(
        "a first turn that is aborted in a closing session gives nothing back",
        "manager/release.py",
        "            if kv is not None:\n                self.session_cache.take_back(slot, kv)",
        "            if kv is not None and not slot.closing:\n                self.session_cache.take_back(slot, kv)",
    ),
    Mutant(
        "of the part of a page that ends a history a turn needs only the first token",
        "manager/waiting.py",
        "list(following[: len(rest)]) == rest",
        "list(following[:1]) == rest[:1]",
    ),
    Mutant(
        "of a history's whole pages a turn needs only the last",
        "manager/waiting.py",
        "if tokens.pages[:full] != history.pages:",
        "if tokens.pages[:full][-1:] != history.pages[-1:]:",
    ),
    Mutant(
        "a turn cannot resume at a border that is exactly its target",
        "state_pool.py",
        "if kv.cache_protected_len <= border <= target]",
        "if kv.cache_protected_len <= border < target]",
    ),
    Mutant(
        "of the tokens past a stop one is published",
        "manager/release.py",
        "for _ in range(beyond)",
        "for _ in range(min(beyond, 1))",
    ),
    Mutant(
        "a window of a running turn that counts for its session is not counted",
        "manager/inspection.py",
        "figures.window_session_held = sum(map(self._window_held_tokens, of_sessions))",
        "figures.window_session_held = sum(self._window_held_tokens(kv) for _, kv in self.session_cache.idle())",
    ),
    # A sliding window
    Mutant(
        "a match looks for tombstones in the last three nodes of its window",
        "swa_radix_cache.py",
        "        while node.parent is not None and end - at < self.reach:\n",
        "        for _ in range(3):\n"
        "            if node.parent is None or end - at >= self.reach:\n"
        "                break\n",
    ),
    Mutant(
        "a publish revives tombstones of the last two nodes",
        "swa_radix_cache.py",
        "        while end > 0:\n",
        "        for _ in range(2):\n            if end <= 0:\n                break\n",
    ),
    Mutant(
        "an eviction of pages and of three or more window sides frees a side too few",
        "swa_radix_cache.py",
        "wanted = self.swa_evictable_size - num_window_pages",
        "wanted = self.swa_evictable_size - num_window_pages + (num_pages > 0 and num_window_pages > 2)",
    ),
    Mutant(
        "of three tombstones that are published with live pages one counts as live",
        "swa_radix_cache.py",
        "        self.swa_evictable_size += len(leaf.value)\n        self._windows.offer(leaf)",
        "        self.swa_evictable_size += len(value) - min(gone, 2)\n        self._windows.offer(leaf)",
    ),
    Mutant(
        "a cursor that passes five or more pages frees four window sides",
        "release.py",
        "[behind.start : behind.stop]",
        "[behind.start : min(behind.stop, behind.start + 4)]",
    ),
    # Recurrent states
    Mutant(
        "a third border takes the slot of the newest",
        "state_pool.py",
        "kv.tracked.pop(min(kv.tracked))",
        "kv.tracked.pop(max(kv.tracked))",
    ),
    Mutant(
        "a match goes back past two nodes without a state, and no further",
        "mamba_radix_cache.py",
        "        while node.parent is not None and node.mamba_value is None:\n",
        "        for _ in range(2):\n"
        "            if node.parent is None or node.mamba_value is not None:\n"
        "                break\n",
    ),
    Mutant(
        "a publish does not take the last free state slot",
        "mamba_radix_cache.py",
        "not states.available:",
        "states.available < 2:",
    ),
    Mutant(
        "an unlocked state behind which prefixes go on is never evicted",
        "mamba_radix_cache.py",
        "            self._states.offer(node)\n\n    def evict",
        "            if not node.children:\n                self._states.offer(node)\n\n    def evict",
    ),
    Mutant(
        "an eviction of three or more states that are all there are leaves one",
        "mamba_radix_cache.py",
        "wanted = self.mamba_evictable_size - num_states",
        "wanted = self.mamba_evictable_size - num_states + (num_states == self.mamba_evictable_size > 2)",
    ),
]
