"""A toy engine's loop that writes its memory events, with one injected bug.

    python toy_loop.py trace.jsonl             writes trace.001.jsonl
    kvspec check trace.001.jsonl

    python toy_loop.py trace.jsonl --fixed     the engine without the bug

The engine overlaps: it queues a forward pass before it has seen the one before complete. Prompts that another machine
has computed are loaded on a separate stream. `README.md` beside this file says how to instrument your own engine.
"""

import sys
from dataclasses import dataclass, field

from kvspec.memory.events import Pool, Use
from kvtrace.writer import TraceWriter

PAGE_SIZE = 4
NUM_PAGES = 12


@dataclass
class Request:
    """A prompt, or a prompt that was loaded, and the tokens sampled after it. Lengths in tokens."""

    name: str
    length: int
    left: int
    """Tokens that it still samples."""
    written: int = 0
    pages: list[int] = field(default_factory=list)


class Engine:
    """Pages, requests, and two streams of a device: `compute` and `load`."""

    def __init__(self, trace: TraceWriter, *, fixed: bool = False) -> None:
        """All pages are free."""
        self.trace = trace
        self.fixed = fixed
        self.free = list(range(1, NUM_PAGES + 1))
        self.running: list[Request] = []
        self.step = 0
        self.in_flight: list[Request] = []
        """Those of the last forward pass, which the host has not seen complete."""
        trace.header("toy loop 1.0", {"kv": Pool(page_size=PAGE_SIZE, num_pages=NUM_PAGES)})

    def admit(self, name: str, length: int, samples: int) -> None:
        """Begin a request with a prompt that the next pass computes."""
        self._start(Request(name, length, samples))

    def load(self, name: str, length: int, samples: int) -> None:
        """Begin a request whose prompt another machine has computed: a transfer writes its pages."""
        request = Request(name, length, samples, written=length)
        self._start(request)
        if self.fixed:  # BUG: without this the transfer may write pages that the pass in flight still uses
            self.trace.wait("load", on="compute", at="Engine.load")
        transfer = f"load of {name}"
        self.trace.begin(transfer, "load", writes=[Use(table=name, stop=length)], at="Engine.load")
        self.trace.wait("compute", transfer, at="Engine.load")

    def _start(self, request: Request) -> None:
        self._grow(request)
        self.running.append(request)

    def _grow(self, request: Request) -> None:
        """Pages for all of its tokens."""
        count = -(-request.length // PAGE_SIZE) - len(request.pages)
        if count > 0:
            new, self.free = self.free[:count], self.free[count:]
            self.trace.take(request.name, "kv", new, at="Engine._grow")
            self.trace.map(request.name, request.name, "kv", len(request.pages), new, at="Engine._grow")
            request.pages += new

    def run_step(self) -> None:
        """Queue a forward pass over all that run, then process the tokens that the pass before has sampled."""
        before, self.in_flight = self.in_flight, list(self.running)
        self.step += 1
        for request in self.running:
            if request.written == request.length:  # the token that the pass before samples on the device
                request.length += 1
                self._grow(request)
        self.trace.begin(
            self.step,
            "compute",
            reads=[Use(table=request.name, stop=request.length) for request in self.running],
            writes=[Use(table=request.name, start=request.written, stop=request.length) for request in self.running],
            at="Engine.run_step",
        )
        for request in self.running:
            request.written = request.length
        if self.step > 1:
            self.trace.end(self.step - 1, at="Engine.run_step")
        for request in before:
            self._sampled(request)

    def _sampled(self, request: Request) -> None:
        """The pass before has sampled a token of this request."""
        if request not in self.running:
            return  # it ended a step ago; the pass that was in flight then computed one token too many
        self.trace.deliver(self.step - 1, request.name, at="Engine._sampled")
        request.left -= 1
        if not request.left:
            self.running.remove(request)
            self.trace.unmap(request.name, at="Engine._sampled")
            self.trace.release(request.name, "kv", request.pages, at="Engine._sampled")
            self.trace.end_holder(request.name)
            self.free = request.pages + self.free


def main(path: str, *, fixed: bool) -> None:
    """Run a few requests, and write their memory events beside `path`."""
    trace = TraceWriter(path)
    engine = Engine(trace, fixed=fixed)
    engine.admit("a", 6, samples=2)
    engine.admit("b", 9, samples=4)
    for _ in range(3):
        engine.run_step()
    engine.load("c", 7, samples=2)
    while engine.running:
        engine.run_step()
    trace.close()
    if trace.problem:
        sys.exit(trace.problem)
    print(*trace.files)


if __name__ == "__main__":
    main(sys.argv[1], fixed="--fixed" in sys.argv[2:])
