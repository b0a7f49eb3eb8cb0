"""The scheduler's state: waiting and running requests, and launches in flight."""

from collections import deque
from collections.abc import Iterable
from random import Random

from kvref.scheduler import policy
from kvref.scheduler.hybrid import HybridPools
from kvref.scheduler.policy import SchedulerConfig
from kvref.scheduler.req import Flight, GenerateReq, Req
from kvref.scheduler.sessions import SessionController
from kvspec.events import Config, Step


class SchedulerState:
    """The queues and counters of one scheduler."""

    def __init__(
        self,
        step: Step,
        memory: Config,
        requests: Iterable[GenerateReq],
        config: SchedulerConfig = SchedulerConfig(),  # noqa: B008 - it is immutable
    ) -> None:
        """Schedule `requests`, which are taken one by one, on an implementation of the size `memory`.

        Raises:
            ValueError: with these switches no request could ever run in this memory.
        """
        self.step = step
        self.memory = memory
        self.config = config = policy.fitted(config, memory)
        self.waiting_queue: deque[Req] = deque()
        self.running_batch: list[Req] = []
        """The decode batch, in the order of admission."""
        self.chunked_req: Req | None = None
        """The request in the middle of its prefill: the one admitted last."""
        self.new_token_ratio = config.init_new_token_ratio
        self.finished = 0
        """Requests that ran to their end."""
        self.rejected: dict[str, str] = {}
        """Requests that could never run, and why."""
        self.aborted: list[str] = []
        """Requests that were aborted on their way."""

        self._requests = iter(requests)
        self._received = 0
        self._sessions = SessionController(step)
        self._hybrid = HybridPools(step, memory, config)
        self._flights: deque[Flight] = deque()
        self._completions = Random(config.completion_seed)
        self._launches = 0
        self._completed = 0
        self._batch_is_full = False
        """Whether another request had no room, and no request has left since."""
        self._decode_due = False
        """Whether a request was retracted: running requests must decode before a prefill, or the request is admitted at
        once, retracted again, and so on forever (994)."""
        self._last_finished = ""
        self._last_retract = self._last_abort = self._last_close = 0
        self._aborts = self._closes = 0
