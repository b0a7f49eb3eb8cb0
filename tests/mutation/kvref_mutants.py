"""Defects for kvref that the gallery does not have, one place each, thought up by reading kvref alone.

`tests/mutation/kvref.py` tries them: vectors and the fuzzer are to find each.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """A text in a module that is replaced; it occurs there once."""

    what: str
    module: str
    """Path below `reference/kvref`."""
    old: str
    new: str


MUTANTS = [
    # Rows and launches
    Mutant(
        "a completed launch ends the reads of the newest",
        "req_to_token_pool.py",
        "self._reads.popleft()",
        "self._reads.pop()",
    ),
    Mutant(
        "only the newest launch is asked what it reads of a row",
        "req_to_token_pool.py",
        "return max((reads.get(row, 0) for reads in self._reads), default=0)",
        "return self._reads[-1].get(row, 0) if self._reads else 0",
    ),
    Mutant(
        "a row that comes back keeps its block table",
        "req_to_token_pool.py",
        "        self.req_to_token[row] = []\n",
        "",
    ),
    Mutant(
        "a run that has ended is verified when its launch completes",
        "launch.py",
        "        self.drafted.pop(req, None)\n",
        "",
    ),
    # Room
    Mutant(
        "the last page of the pool is never given out",
        "allocator.py",
        "return len(self._recycled) + self.num_pages + 1 - self._next_unused",
        "return len(self._recycled) + self.num_pages - self._next_unused",
    ),
    Mutant(
        "a page is taken when the one before it is full, not past it",
        "allocator.py",
        "return max(0, ceil_pages(length, self.page_size) - held)",
        "return max(0, ceil_pages(length + 1, self.page_size) - held)",
    ),
    Mutant(
        "missing window pages are no reason to refuse",
        "manager/state.py",
        "window_short = 0 if swa is None else swa.window.short_of(pages)",
        "window_short = 0",
    ),
    Mutant(
        "a prompt may not fill the context",
        "manager/prefill.py",
        "if seq_len > self.config.max_context_len:",
        "if seq_len >= self.config.max_context_len:",
    ),
    Mutant(
        "a decode step may not fill the context",
        "manager/running.py",
        "if end > max_context_len:",
        "if end >= max_context_len:",
    ),
    # Lengths
    Mutant(
        "a decode step takes what is allocated past it for not there",
        "manager/running.py",
        "            if end > kv.kv_allocated_len:\n                kv.kv_allocated_len = end\n",
        "            kv.kv_allocated_len = end\n",
    ),
    Mutant(
        "a verify brings tokens and leaves what is promised as it was",
        "manager/running.py",
        "        run.promised_len = len(run.tokens) + len(run.unverified)\n",
        "",
    ),
    Mutant(
        "a session keeps positions that are prepared and not launched",
        "session_cache.py",
        "kv.kv_committed_len = min(kv.kv_committed_len, run.launched_len, len(run.tokens))",
        "kv.kv_committed_len = min(kv.kv_committed_len, len(run.tokens))",
    ),
    Mutant(
        "a resume frees the tail and leaves it in the block table",
        "session_cache.py",
        "        del table[orphaned.start :]\n",
        "",
    ),
    Mutant(
        "finish publishes the over-run position, which has no token",
        "manager/release.py",
        "kept = min(run.kv.kv_committed_len, len(tokens))",
        "kept = run.kv.kv_committed_len",
    ),
    Mutant(
        "a publish counts the page that is begun as protected",
        "radix_cache.py",
        "kv.cache_protected_len = last * self.page_size",
        "kv.cache_protected_len = length",
    ),
    # The prefix store
    Mutant(
        "a row goes on naming the duplicates that were freed",
        "radix_cache.py",
        "        table[first : first + len(known)] = known\n",
        "",
    ),
    Mutant(
        "a page whose last follower was evicted is never evicted",
        "radix_cache.py",
        "        self.allocator.free(leaf.value)\n        self._leaves.offer(parent)\n",
        "        self.allocator.free(leaf.value)\n",
    ),
    Mutant(
        "a page that was locked once is never evicted",
        "radix_cache.py",
        "                self.protected_size -= len(node.value)\n                self._leaves.offer(node)\n",
        "                self.protected_size -= len(node.value)\n",
    ),
    Mutant(
        "an eviction frees a page less than asked",
        "radix_cache.py",
        "while self.evictable_size > wanted and",
        "while self.evictable_size > wanted + 1 and",
    ),
    Mutant(
        "what was matched is taken for there, though it was evicted since",
        "manager/prefill.py",
        "            if len(base.pages) * self.config.page_size < prefix_len:\n",
        "            if not base.pages and prefix_len > len(request.tokens):\n",
    ),
    # Ways out, and sessions
    Mutant(
        "a retracted chunk still counts as the one in the middle of its prefill",
        "manager/release.py",
        "        self.chunked.discard(run.name)\n",
        "",
    ),
    Mutant(
        "an abort wipes what a running turn has overwritten, not what one did that waits again",
        "manager/release.py",
        "            if request.extended:\n",
        "            if run is not None:\n",
    ),
    Mutant(
        "a turn that was lent the slot and is aborted holds it on",
        "manager/release.py",
        "self.holders.pop(req, None)",
        "self.holders.get(req)",
    ),
    Mutant(
        "a slot that is lent can be preempted",
        "manager/release.py",
        "if slot.kv is None or slot.lent:",
        "if slot.kv is None:",
    ),
    Mutant(
        "a retracted turn is its session's no longer",
        "manager/release.py",
        "            self.session_cache.save(slot, run)\n        return",
        "            self.session_cache.save(slot, run)\n            slot.turn = None\n        return",
    ),
    Mutant(
        "a finished turn's tokens are not the session's history",
        "manager/release.py",
        "            slot.history = run.tokens\n",
        "",
    ),
    Mutant(
        "a slot that takes its record back stays lent",
        "session_cache.py",
        "        slot.kv = kv\n        slot.lent = False\n",
        "        slot.kv = kv\n",
    ),
    Mutant(
        "a closed session stays open",
        "session_cache.py",
        "        self.wipe(slot)\n        del self.slots[slot.name]\n",
        "        self.wipe(slot)\n        slot.closing = False\n",
    ),
    Mutant(
        "a session that holds nothing takes tokens that do not go on from its history",
        "manager/waiting.py",
        "if not _begins_with(tokens, slot.history):",
        "if slot.kv is not None and not _begins_with(tokens, slot.history):",
    ),
    Mutant(
        "a turn that has resumed once goes on from the slot ever after",
        "manager/waiting.py",
        "request.resumed = match.lent is not None",
        "request.resumed |= match.lent is not None",
    ),
    # Figures
    Mutant(
        "a waiting turn's row is not counted",
        "manager/inspection.py",
        "rows_requests=len(of_requests)",
        "rows_requests=len(self.running)",
    ),
    # The window
    Mutant(
        "a match needs a page more than the window reaches",
        "swa_radix_cache.py",
        "while node.parent is not None and end - at < self.reach:",
        "while node.parent is not None and end - at <= self.reach:",
    ),
    Mutant(
        "pages that come without window sides are not tombstones",
        "swa_radix_cache.py",
        "            parent.swa_tombstone = True\n",
        "",
    ),
    Mutant(
        "the upper half of a node that is split loses its window locks",
        "swa_radix_cache.py",
        "middle.swa_tombstone, middle.swa_lock_ref = node.swa_tombstone, node.swa_lock_ref",
        "middle.swa_tombstone, middle.swa_lock_ref = node.swa_tombstone, 0",
    ),
    Mutant(
        "a turn that is retracted computes its last token again behind a window that is gone",
        "manager/release.py",
        "next_position = min(run.launched_len, len(run.tokens) - 1)",
        "next_position = run.launched_len",
    ),
    # Recurrent states
    Mutant(
        "a resume keeps states of tokens that it computes again",
        "state_pool.py",
        "for border, slot in kv.tracked.items() if border <= length}",
        "for border, slot in kv.tracked.items()}",
    ),
    Mutant(
        "a slot that was taken early and given back is remembered",
        "state_pool.py",
        "            self.free([request.state])\n            request.state = None\n",
        "            self.free([request.state])\n",
    ),
    Mutant(
        "the slot that was taken early is counted as missing",
        "state_pool.py",
        "return self.tracking_states + (request.state is None) if self.num_pages else 0",
        "return self.tracking_states + 1 if self.num_pages else 0",
    ),
    Mutant(
        "a turn goes on from its working state, a token past its place",
        "state_pool.py",
        "if not kv.states or kv.state_len <= target:",
        "if not kv.states or kv.state_len <= target + 1:",
    ),
    Mutant(
        "a state that is evicted with its page is not given back",
        "mamba_radix_cache.py",
        "            self._free_state(leaf)\n            self._states.forget(leaf)\n",
        "            self.mamba_evictable_size -= 1\n            leaf.mamba_value = None\n",
    ),
    Mutant(
        "a state that is published is counted as evictable, though its holder has locked it",
        "mamba_radix_cache.py",
        "        slot = kv.last_node.mamba_value = self.pool.states.donate(kv, kv.cache_protected_len)\n"
        "        self.mamba_protected_size += 1\n",
        "        slot = kv.last_node.mamba_value = self.pool.states.donate(kv, kv.cache_protected_len)\n"
        "        self.mamba_evictable_size += 1\n",
    ),
    # No vector found these at first
    Mutant(
        "a session that waits to be closed can be opened again",
        "manager/waiting.py",
        "if session in self.session_cache.slots:",
        "if session in self.session_cache.slots and not self.session_cache.slots[session].closing:",
    ),
    Mutant(
        "a request takes a state slot before it has matched",
        "manager/waiting.py",
        "if request.prefix_len is None:",
        "if request.prefix_len is None and request.extended:",
    ),
    Mutant(
        "a match of which the last pages are gone still counts",
        "manager/prefill.py",
        "            if len(base.pages) * self.config.page_size < prefix_len:",
        "            if prefix_len and not base.pages:",
    ),
    Mutant(
        "a turn that resumes needs state slots besides those of its session",
        "manager/prefill.py",
        "states=sum(states.states_missing(prefill.request) for prefill in batch if prefill.row is None),",
        "states=sum(states.states_missing(prefill.request) for prefill in batch if prefill.run is None),",
    ),
    Mutant(
        "a step ahead of a verify may end past the row",
        "manager/running.py",
        "            if end > max_context_len:\n",
        "            if kv.kv_committed_len + n > max_context_len:\n",
    ),
    Mutant(
        "the number of an older launch in flight may be used again",
        "manager/running.py",
        "if any(launch == other.number for other in self.launches):",
        "if self.launches and launch == self.launches[-1].number:",
    ),
    Mutant(
        "of two steps that completed before a verify one is forgotten",
        "manager/running.py",
        "run.verifiable += 1",
        "run.verifiable = 1",
    ),
    Mutant(
        "a request that has stopped still counts the step behind",
        "manager/running.py",
        "            run.unverified.clear()\n            run.verifiable = 0\n",
        "            run.verifiable = 0\n",
    ),
    Mutant(
        "a verify may accept what the step behind has written, too",
        "manager/running.py",
        "if not 1 <= accepted <= run.unverified[0]:",
        "if not 1 <= accepted <= sum(run.unverified):",
    ),
    Mutant(
        "a session forgets that the state of its turn has gone past what it keeps",
        "session_cache.py",
        "kv.state_len = run.launched_len",
        "kv.state_len = kv.kv_committed_len",
    ),
    Mutant(
        "a tombstone that is revived within a window lock counts as evictable",
        "swa_radix_cache.py",
        "                if node.swa_lock_ref:\n",
        "                if False:\n",
    ),
    Mutant(
        "a node that is split has its state's locks above, too",
        "mamba_radix_cache.py",
        "        return MatchResult(pages[:end], node)\n\n    def cache_unfinished",
        "        return MatchResult(pages[:end], node)\n\n"
        "    def _split(self, node: TreeNode, at: int) -> TreeNode:\n"
        "        middle = super()._split(node, at)\n"
        "        middle.mamba_lock_ref = node.mamba_lock_ref\n"
        "        return middle\n\n"
        "    def cache_unfinished",
    ),
    Mutant(
        "a session's history stays that of its first turn",
        "manager/release.py",
        "            slot.history = run.tokens\n",
        "            slot.history = slot.history if slot.history.pages else run.tokens.copy()\n",
    ),
]
