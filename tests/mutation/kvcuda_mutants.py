"""Defects for kvcuda, one place each: in the kernels, and in the host arithmetic, staging and streams around them.

Most keep every number that an answer reports and go wrong only on the device, past one block, in another order of jobs,
or when a stream is late. `tests/mutation/kvcuda.py` tries them.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """A text in a module that is replaced; it occurs there once."""

    module: str
    """Path below `cuda_impl/kvcuda`."""
    old: str
    new: str
    first: str = ""
    """The tests that are tried first: `FILE` or `FILE::TEST`, without `test_` and `.py` of the file."""
    unseen: str = ""
    """Why no test without a GPU can notice it, where that is so."""
    unread: str = ""
    """Why the canary has nothing to find: passes read and write what they do without it."""


MUTANTS = [
    # Kernels: blocks, passes, and what a block shares with the others
    Mutant(
        "kernels.py",
        "first = start + tl.program_id(1) * BLOCK",
        "first = start",
        first="memory::test_rows_ring_and_out_follow_the_arithmetic_in_small_blocks",
    ),
    Mutant(
        "kernels.py",
        "    first = tl.program_id(1) * BLOCK\n    if first < count:",
        "    first = 0\n    if first < count:",
        first="memory::test_rows_ring_and_out_follow_the_arithmetic_in_small_blocks",
    ),
    Mutant(
        "kernels.py",
        "for first in range(JOB_BLOCK, job, JOB_BLOCK):",
        "for first in range(JOB_BLOCK, JOB_BLOCK, JOB_BLOCK):",
        first="memory::test_batch_larger_than_several_blocks_of_jobs",
    ),
    Mutant(
        "kernels.py",
        "for first in range(JOB_BLOCK, job, JOB_BLOCK):",
        "for first in range(0, job, JOB_BLOCK):",
        first="memory::test_batch_larger_than_several_blocks_of_jobs",
    ),
    Mutant(
        "kernels.py",
        "mask=other < job, other=0))\n    return",
        "mask=other <= job, other=0))\n    return",
        unseen="the one caller asks for the sum before a whole number of blocks: no job beyond is in the last one",
    ),
    Mutant(
        "kernels.py",
        "mask=offsets < job, other=0))\n    for",
        "mask=offsets <= job, other=0))\n    for",
        first="memory::test_batch_larger_than_several_blocks_of_jobs",
    ),
    Mutant(
        "kernels.py",
        "job = tl.program_id(0) * JOB_BLOCK + tl.arange(0, JOB_BLOCK)",
        "job = tl.arange(0, JOB_BLOCK)",
        first="memory::test_batch_larger_than_several_blocks_of_jobs",
    ),
    Mutant(
        "kernels.py",
        "before = sum_before(words + FIELDS + 3, tl.program_id(0) * JOB_BLOCK, JOB_BLOCK)",
        "before = sum_before(words + FIELDS + 3, tl.program_id(0), JOB_BLOCK)",
        first="memory::test_batch_larger_than_several_blocks_of_jobs",
    ),
    Mutant(
        "kernels.py",
        "taken = before + tl.cumsum(pages, 0) - pages",
        "taken = before + tl.cumsum(pages, 0)",
        first="memory::test_batch_larger_than_several_blocks_of_jobs",
    ),
    Mutant(
        "kernels.py",
        "live = job < tl.load(words + 1)",
        "live = job <= tl.load(words + 1)",
        first="memory::test_rows_ring_and_out_follow_the_arithmetic_in_small_blocks",
    ),
    # Kernels: rings, rows and slots
    Mutant(
        "kernels.py",
        "tl.where(index >= num_pages, index - num_pages, index)",
        "tl.where(index > num_pages, index - num_pages, index)",
        first="memory::test_rows_ring_and_out_follow_the_arithmetic_in_small_blocks",
    ),
    Mutant(
        "kernels.py",
        "cut = start % P != 0",
        "cut = start % P > 1",
        first="memory::test_rows_ring_and_out_follow_the_arithmetic_in_small_blocks",
    ),
    Mutant(
        "kernels.py",
        "fresh = live & (index >= held)",
        "fresh = live & (index > held)",
        first="memory::test_batch_larger_than_several_blocks_of_jobs",
    ),
    Mutant(
        "kernels.py",
        "first_slot = fresh & (offset == 0)\n            if DEBUG",
        "first_slot = fresh\n            if DEBUG",
        first="memory::test_rows_ring_and_out_follow_the_arithmetic_in_small_blocks",
        unread="without a window only the debug mode looks at it; with one the same side is stored once for each slot",
    ),
    Mutant(
        "kernels.py",
        "known = tl.load(arena + before + index - start // P",
        "known = tl.load(arena + before + index",
        first="memory::test_matched_pages_are_copied_and_duplicates_replaced",
    ),
    Mutant(
        "kernels.py",
        "out + tokens_before + position",
        "out + position",
        first="memory::test_batch_larger_than_several_blocks_of_jobs",
    ),
    Mutant(
        "kernels.py",
        "missing = live & (position >= allocated)",
        "missing = live & (position > allocated)",
        first="memory::test_batch_larger_than_several_blocks_of_jobs",
    ),
    Mutant(
        "kernels.py",
        "held = (allocated + P - 1) // P",
        "held = allocated // P",
        first="memory::test_batch_larger_than_several_blocks_of_jobs",
    ),
    Mutant(
        "kernels.py",
        "out = out_cache_loc + tl.load(words + 3) + job * n",
        "out = out_cache_loc + tl.load(words + 3) + job",
        first="memory::test_speculative_decode_writes_only_what_is_missing",
    ),
    Mutant(
        "kernels.py",
        "table = req_to_token + row.to(tl.int64) * max_context_len\n        position = first",
        "table = req_to_token + row * max_context_len\n        position = first",
        first="memory::test_rows_past_two_to_the_31_elements",
    ),
    Mutant(
        "kernels.py",
        "kept = tl.load(run + slot // P, mask=slot < slots, other=0)",
        "kept = tl.load(run + slot % P, mask=slot < slots, other=0)",
        first="memory::test_matched_pages_are_copied_and_duplicates_replaced",
    ),
    Mutant(
        "kernels.py",
        "for written in range(0, slots, BLOCK):",
        "for written in range(0, BLOCK, BLOCK):",
        first="memory::test_duplicates_of_several_blocks_are_replaced_slot_by_slot",
    ),
    Mutant(
        "kernels.py",
        "            tl.debug_barrier()  # every thread has read its pages from the row before they are overwritten\n",
        "",
        unseen="the interpreter runs a statement for all elements before the next; racecheck sees shared memory only",
        unread="in the interpreter as above",
    ),
    # Kernels: window sides
    Mutant(
        "kernels.py",
        "sided = live & (index >= bare)",
        "sided = live",
        first="windows::test_publication_moves_sides_or_leaves_them",
    ),
    Mutant(
        "kernels.py",
        "window_index + index - bare,",
        "window_index + index,",
        first="windows::test_sides_follow_the_arithmetic_in_small_blocks",
    ),
    Mutant(
        "kernels.py",
        "    tl.store(window_of + page, tl.zeros_like(page), mask=live)\n\n\n@kernel(aligned=True)\ndef extend_kernel",
        "\n\n@kernel(aligned=True)\ndef extend_kernel",
        first="windows::test_publication_moves_sides_or_leaves_them",
        unread="the side that a page had is not read before the page has another one",
    ),
    Mutant(
        "kernels.py",
        "tl.store(window_of + tombstone, tl.load(window_of + page, mask=sided, other=0), mask=sided)",
        "tl.store(window_of + tombstone, tombstone, mask=sided)",
        first="windows::test_publication_moves_sides_or_leaves_them",
    ),
    Mutant(
        "kernels.py",
        "                    window_head + at,",
        "                    head + at,",
        first="windows::test_sides_follow_the_arithmetic_in_small_blocks",
    ),
    Mutant(
        "kernels.py",
        "                page,\n                window_head + at,",
        "                page,\n                head + at,",
        first="windows::test_sides_follow_the_arithmetic_in_small_blocks",
    ),
    # The host's arithmetic of what a launch gets
    Mutant(
        "memory.py",
        "entries[:, 3] = pages.cumsum() - pages",
        "entries[:, 3] = pages.cumsum()",
        first="memory::test_batch_larger_than_several_blocks_of_jobs",
    ),
    Mutant(
        "memory.py",
        "entries[:, 4] = lengths.cumsum() - lengths",
        "entries[:, 4] = ends.cumsum() - ends",
        first="memory::test_batch_larger_than_several_blocks_of_jobs",
    ),
    Mutant(
        "kernels.py",
        "rewritten = table + (start + first) * P",
        "rewritten = table + start * P",
        first="memory::test_duplicates_of_several_blocks_are_replaced_slot_by_slot",
    ),
    Mutant(
        "kernels.py",
        "run = arena + place + first",
        "run = arena + place",
        first="memory::test_duplicates_of_several_blocks_are_replaced_slot_by_slot",
    ),
    Mutant(
        "memory.py",
        "grid = (jobs, -(-longest // EXTEND_BLOCK))",
        "grid = (jobs, 1)",
        first="memory::test_rows_ring_and_out_follow_the_arithmetic_in_small_blocks",
    ),
    Mutant(
        "memory.py",
        "longest = max(longest, *(copy.end - copy.start for copy in copies))",
        "pass",
        first="memory::test_matched_prefix_of_several_blocks_is_copied_whole",
    ),
    Mutant(
        "memory.py",
        "kernels.decode_kernel[(-(-batch // JOB_BLOCK),)]",
        "kernels.decode_kernel[(1,)]",
        first="memory::test_batch_larger_than_several_blocks_of_jobs",
    ),
    Mutant(
        "memory.py",
        "pages = -(-ends // page_size) + (-starts // page_size)",
        "pages = -(-(ends - starts) // page_size)",
        first="memory::test_rows_ring_and_out_follow_the_arithmetic_in_small_blocks",
        unread="a page too many is taken off the ring: it is lost, and what the rows name is right",
    ),
    Mutant(
        "memory.py",
        "grown = np.maximum(allocated, ends)",
        "grown = ends",
        first="memory::test_speculative_decode_writes_only_what_is_missing",
    ),
    Mutant(
        "memory.py",
        "        self._check_room(needed)\n        self.flush()\n        out = self._next_out(tokens)",
        "        self._check_room(needed)\n        out = self._next_out(tokens)",
        first="moves::test_batch_that_leaves_costs_one_launch",
    ),
    Mutant(
        "memory.py",
        "        self._check_room(needed)\n        self.flush()\n        out = self._next_out(batch * n)",
        "        self._check_room(needed)\n        out = self._next_out(batch * n)",
        first="moves::test_window_sides_that_leave_cost_no_launch_of_their_own",
    ),
    Mutant(
        "memory.py",
        "            self.streams.scheduler.wait(reader)\n",
        "",
        first="streams::test_slots_of_new_tokens_stay_until_a_late_launch_has_read_them",
    ),
    Mutant(
        "memory.py", "return buffer * self.out_tokens", "return 0", first="memory::test_out_of_the_last_batches_stays"
    ),
    Mutant(
        "memory.py",
        "for first in range(split, len(copies), MAX_JOBS):",
        "for first in range(split, split, MAX_JOBS):",
        first="memory::test_many_matched_runs_are_copied_in_several_launches",
    ),
    Mutant(
        "memory.py",
        "if tokens > self.out_tokens:",
        "if tokens > 2 * self.out_tokens:",
        first="memory::test_out_is_allocated_anew_for_a_larger_batch",
    ),
    # Moves
    Mutant(
        "moves.py",
        "    Move.PUBLISH: {Move.EVICT},\n",
        "",
        first="memory::test_eviction_and_publication_do_not_share_a_launch",
    ),
    Mutant(
        "moves.py",
        "    Move.EVICT: {Move.PUBLISH, Move.REVIVE},\n",
        "    Move.EVICT: {Move.PUBLISH},\n",
        first="windows::test_moves_that_touch_the_same_sides_do_not_share_a_launch",
    ),
    Mutant(
        "moves.py",
        "    Move.DROP: {Move.PUBLISH, Move.REVIVE},\n",
        "",
        first="windows::test_moves_that_touch_the_same_sides_do_not_share_a_launch",
    ),
    Mutant(
        "moves.py",
        "    Move.REVIVE: {Move.DROP},\n",
        "",
        first="windows::test_moves_that_touch_the_same_sides_do_not_share_a_launch",
    ),
    Mutant(
        "moves.py",
        "            or (self._shed and kind in REWRITES and row in self._shed)\n",
        "",
        first="windows::test_moves_that_touch_the_same_sides_do_not_share_a_launch",
    ),
    Mutant(
        "moves.py",
        "grid = (jobs, -(-self._widest_move // MOVE_BLOCK))",
        "grid = (jobs, 1)",
        first="memory::test_widest_move_of_a_launch_decides_its_blocks",
    ),
    Mutant(
        "moves.py",
        "if count > self._widest_move:\n            self._widest_move = count",
        "self._widest_move = count",
        first="memory::test_widest_move_of_a_launch_decides_its_blocks",
    ),
    Mutant(
        "moves.py",
        "entries[:, 4] = (self.pushed + ends - counts) % config.num_pages",
        "entries[:, 4] = (self.pushed + ends) % config.num_pages",
        first="memory::test_moves_beyond_one_launch_are_carried_out_in_several",
        unread="no operation of the manager calls free_all",
    ),
    Mutant(
        "moves.py",
        "entries[:, 7] = (tail + side_ends - (counts - bare)) % self.windows.size",
        "entries[:, 7] = (tail + side_ends - counts) % self.windows.size",
        first="windows::test_batch_gives_each_page_its_side",
        unread="no operation of the manager calls free_all",
    ),
    Mutant(
        "moves.py",
        "            if self._num_moves + len(rows[part]) > MAX_JOBS:\n                self.flush()\n",
        "",
        first="memory::test_moves_beyond_one_launch_are_carried_out_in_several",
        unread="no operation of the manager calls free_all",
    ),
    Mutant(
        "moves.py",
        "self._num_moves == MAX_JOBS\n",
        "self._num_moves > MAX_JOBS\n",
        first="memory::test_moves_beyond_one_launch_are_carried_out_in_several",
        unread="one job more than MAX_JOBS still fits the padded words, and is carried out",
    ),
    Mutant(
        "moves.py",
        "            self._move(Move.REPLACE, row, first, count, place, cursor - first)\n            first += count",
        "            self._move(Move.REPLACE, row, first, count, place, cursor - first)",
        first="memory::test_matched_pages_are_copied_and_duplicates_replaced",
    ),
    Mutant(
        "moves.py",
        "bare = min(max(bare, 0), count)",
        "bare = min(max(bare, 0), 0)",
        first="windows::test_publication_moves_sides_or_leaves_them",
    ),
    # Rings, staging, streams
    Mutant(
        "window_pool.py",
        "tail = self.pushed % self.size",
        "tail = self.pushed % (self.size + 1)",
        first="windows::test_sides_follow_the_arithmetic_in_small_blocks",
    ),
    Mutant(
        "staging.py",
        "        if self._turns and not slot.passed.query():\n            slot.passed.synchronize()\n",
        "",
        first="memory::test_words_are_not_written_over_before_a_late_stream_has_read_them",
    ),
    Mutant(
        "staging.py",
        "size = (used - 1).bit_length()\n        self._device[size]",
        "size = (used - 1).bit_length() - 1\n        self._device[size]",
        first="memory::test_matched_pages_are_copied_and_duplicates_replaced",
    ),
    Mutant(
        "tensors.py",
        "        stream.record(slot.passed)\n",
        "",
        first="memory::test_words_are_not_written_over_before_a_late_stream_has_read_them",
    ),
    Mutant(
        "device_manager/running.py",
        "        streams.forward.wait(written)\n",
        "",
        first="streams::test_no_order_that_events_allow_corrupts",
    ),
    Mutant(
        "device_manager/running.py",
        "            self.streams.scheduler.wait(flight.done)\n",
        "            pass\n",
        first="streams::test_no_order_that_events_allow_corrupts",
    ),
    Mutant(
        "device_manager/running.py",
        "        self.memory.out_is_read(set(self.rows.batch[batch.rows].tolist()), done)\n",
        "",
        first="streams::test_slots_of_new_tokens_stay_until_a_late_launch_has_read_them",
    ),
    Mutant(
        "decode_graph.py",
        "        manager.streams.scheduler.wait(done)\n",
        "",
        first="graph::test_pages_that_a_replay_takes_are_there_when_they_are_freed",
    ),
    Mutant(
        "moves.py",
        "            self.streams.scheduler.wait(self._last_pass)\n",
        "",
        first="observed_streams::test_nothing_is_found_in_a_soak",
        unread="either page of a duplicate holds the same content",
    ),
    # The manager's memory of earlier operations
    Mutant(
        "row_table.py",
        "            self._withheld.add(row)\n",
        "            self._give_back(row)\n",
        first="streams::test_no_order_that_events_allow_corrupts",
    ),
    Mutant(
        "row_table.py",
        "self._readers[self._reads.popleft().rows] -= 1",
        "self._readers[self._reads.popleft().rows] = 0",
        first="batches::test_row_that_two_launches_read_is_withheld_for_both",
    ),
    Mutant(
        "row_table.py",
        "self.cursor[row] = self.state_at[row] = 0",
        "self.cursor[row] = 0",
        first="states::test_row_that_comes_back_has_no_state",
    ),
    Mutant(
        "device_manager/running.py",
        "begins = committed + table.unverified[rows]",
        "begins = committed",
        first="conformance::test_vector_conforms",
    ),
    Mutant(
        "device_manager/running.py",
        "                flight.drafted = [other for other in flight.drafted if other is not run]\n",
        "                flight.drafted = [*flight.drafted]\n",
        first="conformance::test_vector_conforms",
        unread="a verify is answered that should be refused; no caller asks for one of a request that has stopped",
    ),
    Mutant(
        "holdings.py",
        "if match.epoch == memory.epoch:",
        "if match.epoch > memory.epoch:",
        first="moves::test_duplicate_of_what_is_queued_waits_for_the_next_launch",
    ),
    Mutant(
        "holdings.py",
        "                node.epoch = self.memory.epoch\n",
        "",
        first="moves::test_duplicate_of_what_is_queued_waits_for_the_next_launch",
    ),
    Mutant(
        "prefix_tree.py",
        "middle = Node(node.key[:at], upper, parent, node.epoch)",
        "middle = Node(node.key[:at], upper, parent)",
        first="moves::test_duplicate_of_a_part_of_what_is_queued_waits_too",
    ),
    Mutant(
        "prefix_tree.py",
        "upper, lower = split(node.runs, at)",
        "lower, upper = split(node.runs, at)",
        first="conformance::test_no_violation_is_found_by_fuzzing",
    ),
    Mutant(
        "arena.py",
        "tail = [Run(first + at, size - at), *runs[number + 1 :]] if at < size else runs[number + 1 :]",
        "tail = [Run(first, size - at), *runs[number + 1 :]] if at < size else runs[number + 1 :]",
        first="arena",
    ),
    Mutant("arena.py", "end += self._remove(end)", "end += self._by_first[end]", first="arena"),
    Mutant(
        "state_slots.py",
        "self._ring[self.pushed % self.size] = slot",
        "self._ring[self.pushed % self.size] = slots[0]",
        first="states",
    ),
    Mutant(
        "records.py",
        "past = [Tracked(slot) for slot, border in self.tracked if border > length]",
        "past = [Tracked(slot, border) for slot, border in self.tracked if border > length]",
        first="states::test_turn_resumes_at_the_last_border_whose_state_is_kept",
    ),
    Mutant(
        "holdings.py",
        "return kv.kept_at(length) or kv.last_node.state",
        "return kv.last_node.state or kv.kept_at(length)",
        first="states::test_state_of_a_longer_prefix_is_not_begun_from",
    ),
    Mutant(
        "device_manager/running.py",
        "table.state_at[rows] = ends",
        "table.state_at[rows] = ends - 1",
        first="hybrid_digest::test_replay_samples_what_the_oracle_samples",
    ),
]
