"""Where a walk over SGLang waits for the launch in flight: where the overlapping loop of its release does."""

import pytest

from kvlab.sglang.walk import barrier

LOOP = """
    def event_loop_normal(self):
        self.run_batch(batch)

    def event_loop_overlap(self):
        while True:
            {first}
            batch = self.get_next_batch_to_run()
            result = self.run_batch(batch)
            {then}
            self.process_batch_result(batch, result)

    def run_batch(self, batch):
        self._apply_war_barrier()
"""


@pytest.mark.parametrize(
    ("first", "then", "before"),
    [
        ("pass", "pass", ""),
        ("self.schedule_stream.wait_stream(self.forward_stream)", "pass", "schedule"),
        ("self._apply_war_barrier()", "pass", "schedule"),
        ("pass", "self._apply_war_barrier()", "results"),
    ],
)
def test_a_walk_waits_where_its_release_does(first: str, then: str, before: str) -> None:
    assert barrier(LOOP.format(first=first, then=then)) == before
