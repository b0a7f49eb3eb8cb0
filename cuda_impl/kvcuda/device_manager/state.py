"""The state of a device manager, and checks that several operations share."""

from collections import deque
from collections.abc import Sequence

from kvcuda.arrays import Ints
from kvcuda.backend import DEVICE
from kvcuda.forward import Forward
from kvcuda.holdings import Holdings
from kvcuda.memory import DeviceMemory
from kvcuda.records import Flight, KvRecord, Request, Run
from kvcuda.row_table import ints
from kvcuda.sessions import Sessions
from kvcuda.streams import Streams, default_streams
from kvspec.events import Config, Refusal


class ManagerState:
    """The parts of a device manager, and its waiting and running requests."""

    def __init__(
        self,
        config: Config,
        *,
        forward: Forward | None = None,
        streams: Streams | None = None,
        debug: bool = False,
    ) -> None:
        """Everything is free, and there are no requests.

        `launch` calls `forward` once the forward stream waits for its inputs. With `debug` the kernels check every page
        that they move.

        Raises:
            ValueError: a size exceeds a limit of the device manager.
        """
        self.config = config
        self.streams = default_streams(DEVICE) if streams is None else streams
        self.memory = DeviceMemory(config, self.streams, debug=debug)
        self.holdings = Holdings(config, self.memory)
        self.rows = self.holdings.rows
        self.states = self.holdings.states
        self.sessions = Sessions(self.holdings)
        self.forward = forward

        self.requests: dict[str, Request] = {}
        self.running: dict[str, Run] = {}
        self.holders: dict[str, KvRecord] = {}
        """The requests that have a row: those that run, and turns that a slot is lent to."""
        self.chunked: set[str] = set()
        """The requests in the middle of their prefill; at most one (BATCH-2)."""
        self.launches: deque[Flight] = deque()
        """The launches in flight, oldest first."""
        self._last_batch: tuple[list[str], list[Run], Ints] | None = None
        """The last running batch that was looked up. Engines often decode the same batch again."""

    def _request(self, req: str) -> Request:
        """The request, or a refusal."""
        request = self.requests.get(req)
        if request is None:
            raise Refusal("OP-1", f"there is no request {req}")
        return request

    def _run(self, req: str) -> Run:
        """The run of a running request, or a refusal."""
        run = self.running.get(req)
        if run is None:
            raise Refusal("OP-1", f"request {req} is not running")
        return run

    def _running_batch(self, reqs: list[str]) -> tuple[list[Run], Ints]:
        """The runs and the rows of all requests of a batch, or a refusal."""
        last = self._last_batch
        if last is not None and last[0] == reqs:
            return last[1], last[2]
        check_batch(reqs)
        try:
            runs = [self.running[req] for req in reqs]
        except KeyError as missing:
            raise Refusal("OP-1", f"request {missing.args[0]} is not running") from None
        rows = ints([run.kv.row for run in runs])
        self._last_batch = list(reqs), runs, rows
        return runs, rows

    def _note_prepared(self, rows: Ints, starts: Ints, outs: Ints) -> None:
        """Record where in `out_cache_loc` the slots of a batch are, for its launch."""
        table = self.rows
        table.start[rows] = starts
        table.out[rows] = outs
        table.batch[rows] = self.memory.batches - 1

    def _give_state_back(self, request: Request) -> int:
        slot, request.state = request.state, 0
        self.states.give_back([slot])
        return slot


def check_batch(reqs: Sequence[str]) -> None:
    """Refuse an empty batch, and a request that is named twice."""
    if not reqs:
        raise Refusal("OP-1", "the batch is empty")
    if len(set(reqs)) < len(reqs):
        raise Refusal("OP-1", "a request is in the batch twice")
