"""A KV connector for which the drive decides when transfers start and end."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvlab.vllm.workload import Workload


@dataclass
class Load:
    """One load: a request's tokens from `start` to `end`, into its pages at these positions."""

    request: str
    start: int
    end: int
    pages: tuple[list[int], ...]
    asynchronous: bool


@dataclass
class Connector:
    """A connector for vLLM's scheduler that answers from a seeded random source.

    It has a prefix of random length of every prompt. An asynchronous load is in flight until `arrived` completes it; a
    synchronous one is part of its step.
    """

    work: Workload
    scheduler: Any = None
    dice: random.Random = field(init=False)
    planned: dict[str, tuple[int, int, bool]] = field(default_factory=dict)
    starting: list[Load] = field(default_factory=list)
    """Loads that start with the step that is currently scheduled."""
    under_way: dict[str, Load] = field(default_factory=dict)
    sending: list[str] = field(default_factory=list)
    """Finished requests whose pages are being sent."""
    asked: dict[str, int] = field(default_factory=dict)

    requires_kv_delivery = False
    supports_divergent_local_hybrid_hits = False

    def __post_init__(self) -> None:
        self.dice = random.Random(self.work.seed + 1)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """The number of tokens after the computed ones that can be loaded; `None`: not known yet."""
        self.asked[request.request_id] = self.asked.get(request.request_id, 0) + 1
        if self.asked[request.request_id] == 1 and self.dice.random() < 0.1:
            return None, False
        size = self.scheduler.block_size
        whole = self.work.whole and self.work.connector == "async" and self.dice.random() < 0.3
        last = request.num_tokens - (not whole)
        end = last if self.dice.random() < 0.2 else self.dice.randrange(0, last // size + 1) * size
        if end == last and self.work.connector == "sync":
            end = last // size * size
        if end <= num_computed_tokens or self.dice.random() < 0.3:
            self.planned.pop(request.request_id, None)
            return 0, False
        asynchronous = self.work.connector == "async"
        self.planned[request.request_id] = (num_computed_tokens, end, asynchronous)
        return end - num_computed_tokens, asynchronous

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request has its pages; the load starts with this step."""
        planned = self.planned.pop(request.request_id, None)
        if planned is None or not num_external_tokens:
            return
        start, end, asynchronous = planned
        load = Load(request.request_id, start, end, blocks.get_block_ids(), asynchronous)
        self.starting.append(load)

    def build_connector_meta(self, scheduler_output: Any) -> list[Load]:
        """The loads that start with this step."""
        loads, self.starting = self.starting, []
        self.under_way.update({load.request: load for load in loads if load.asynchronous})
        return loads

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Whether the pages are sent and then freed. Those of an aborted request are not sent."""
        sent = "ABORT" not in str(request.status) and "ERROR" not in str(request.status)
        if sent and self.dice.random() < self.work.stores:
            self.sending.append(request.request_id)
            return True, None
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """As `request_finished`, for the pages of every group."""
        return self.request_finished(request, block_ids)

    def arrived(self, loads: Iterable[Load]) -> Any:
        """The workers' report with a step's output: completed and failed loads, and completed sends.

        `loads` are the step's synchronous ones.
        """
        from vllm.v1.outputs import KVConnectorOutput

        output = KVConnectorOutput(finished_sending=set(), finished_recving=set())
        for request in [name for name in self.sending if self.dice.random() < 0.4]:
            self.sending.remove(request)
            output.finished_sending.add(request)
        for name in [name for name in self.under_way if self.dice.random() < 0.4]:
            output.finished_recving.add(name)
            self._may_fail(self.under_way.pop(name), output)
        for load in loads:
            if not load.asynchronous:
                self._may_fail(load, output)
        return None if output.is_empty() else output

    def _may_fail(self, load: Load, output: Any) -> None:
        if self.dice.random() >= self.work.failing:
            return
        if len(self.work.groups) > 1:
            if load.asynchronous and hasattr(output, "failed_recving"):
                output.failed_recving.add(load.request)
            return
        size = self.work.groups[0][1]
        pages = load.pages[0][load.start // size : -(-load.end // size)]
        output.invalid_block_ids.update(
            page for page in self.dice.sample(pages, self.dice.randrange(1, len(pages) + 1)) if page
        )

    def has_pending_block_frees(self) -> bool:
        """Never: pages that are sent are freed with `finished_sending`."""
        return False

    def has_pending_push_work(self) -> bool:
        """Never: the drive runs until all has arrived."""
        return False

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """Every group is loaded."""
        return tuple(range(len(self.work.groups)))

    def get_kv_connector_stats(self) -> None:
        """None."""

    def take_events(self) -> tuple[()]:
        """None."""
        return ()

    def on_new_request(self, request: Any) -> None:
        """Do nothing."""

    def update_connector_output(self, output: Any) -> None:
        """Do nothing."""

    def bind_kv_cache_manager(self, manager: Any) -> None:
        """Do nothing."""

    def bind_gpu_block_pool(self, pool: Any) -> None:
        """Do nothing."""
