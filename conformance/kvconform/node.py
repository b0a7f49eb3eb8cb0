"""Implementations in any language: a *node*, a command that answers operations on its standard output.

The node first prints a hello line (`Hello`). kvspec then sends lines: the header of a trace, which has `config` and
gets no answer, and operations, each of which gets one line with its `op` and its `obs` or `refused`. A further header
begins anew if the node supports that (`reset`); otherwise kvspec starts a new process for it. The lines are those of a
trace (`kvspec schema`).
"""

import contextlib
import os
import select
import shlex
import signal
import subprocess
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, cast

import msgspec

from kvconform import subprocesses
from kvconform.errors import LoadError, NodeFault, short
from kvconform.features import POLICIES
from kvconform.protocol import ANSWERS, Implementation
from kvconform.traces.bounds import OutOfRange, check_operation
from kvspec import __version__
from kvspec.events import A, Config, Operation, Refusal, Refused
from kvtrace.header import VERSION, encode
from kvtrace.operations import Header

SECONDS = "KVSPEC_ANSWER_SECONDS"
"""The environment variable with the time limit of an answer, in seconds; 10 without it."""
AFTER_LATE = 20
"""After a late answer the limit is so many times shorter: each attempt with fewer operations waits again."""
LONGEST = 8 << 20
"""The most bytes of an answer."""
STDERR_KEPT, STDERR_SHOWN = 64 << 10, 5
"""The most bytes of a node's standard error that are kept, the last ones, and the most lines that are shown."""
PIECE = 1 << 16
"""The most bytes that are read at once."""
SLICE_MS = 50
"""Milliseconds between two checks whether the node has ended while a child process keeps its output open."""


class Hello(msgspec.Struct, forbid_unknown_fields=True):
    """The first line of a node."""

    kvspec: int
    """The version of the format that the node reads."""
    name: str
    version: str = ""
    unsupported: frozenset[str] = frozenset()
    """Features that it lacks (`kvconform.features.FEATURES`)."""
    policies: dict[str, tuple[str, ...]] = {}
    """Policy -> the ways that the node supports, if not only the default (`kvconform.features.POLICIES`)."""
    reset: bool = False
    """Whether a further header begins anew within the same process."""


class Reply(msgspec.Struct, Generic[A]):
    """The answer to one operation. The operation's arguments may be beside it, as in a trace."""

    op: str
    obs: A | None = None
    refused: Refused | None = None


_replies: dict[type, msgspec.json.Decoder[Reply[Any]]] = {
    operation: msgspec.json.Decoder(Reply[answer])  # type: ignore[valid-type]
    for operation, answer in ANSWERS.items()
}


class Process:
    """A running node: lines in, lines out, each within a time limit."""

    def __init__(self, command: list[str]) -> None:
        """Start it.

        Raises:
            OSError: it cannot be started.
        """
        self._process = subprocesses.start(command)
        self._close = weakref.finalize(self, _close, self._process)
        assert self._process.stdin is not None and self._process.stdout is not None and self._process.stderr is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._stderr = self._process.stderr.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stderr, False)
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)
        self._poll.register(self._stderr, select.POLLIN)
        self._errors = bytearray()
        self.last = "hello"
        """The last answered operation."""

    @property
    def running(self) -> bool:
        """Whether kvspec has not ended the node; it may have ended by itself."""
        return self._process.returncode is None

    def exchange(self, sent: bytes, about: str, seconds: float) -> bytes:
        """Send lines, and return the line that answers the last of them, `about`.

        Raises:
            NodeFault: the node has ended, there is not exactly one line within `seconds`, or it is too long.
        """
        if not self.running:
            raise NodeFault(f"the node was ended before {about}")
        deadline = time.monotonic() + seconds
        if sent and any(fd == self._stdout and event & select.POLLIN for fd, event in self._poll.poll(0)):
            raise NodeFault(f"{self.last} is answered twice")
        unsent, received = self._send(memoryview(sent)), bytearray()
        while not received.endswith(b"\n"):
            if time.monotonic() > deadline:
                raise NodeFault(f"no answer to {about} in time ({SECONDS}); is it flushed?", late=True)
            received += self._read(about)
            unsent = self._send(unsent)
            if len(received) > LONGEST:
                raise NodeFault(f"the answer to {about} is longer than {LONGEST:,} bytes")
        if (count := received.count(b"\n")) > 1:
            raise NodeFault(f"{about} is answered by {count:,} lines")
        return bytes(received)

    def _send(self, unsent: memoryview) -> memoryview:
        """Send as much as the pipe has room for, and return the rest."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # a broken pipe is found when the answer is read
            while unsent:
                unsent = unsent[os.write(self._stdin, unsent) :]
        return unsent

    def _read(self, about: str) -> bytes:
        """Wait for a moment, and return the bytes that have come.

        Raises:
            NodeFault: the node has ended.
        """
        events = dict(self._poll.poll(SLICE_MS))
        if self._stderr in events and not self._keep_errors():
            self._poll.unregister(self._stderr)
        piece = os.read(self._stdout, PIECE) if self._stdout in events else b""
        if piece or events.keys() == {self._stderr}:
            return piece
        status = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is not None:
            exited = status.si_code == os.CLD_EXITED
            how = f"exit status {status.si_status}" if exited else signal.Signals(status.si_status).name
            raise NodeFault(f"the node ended ({how}) instead of an answer to {about}")
        if events:
            time.sleep(SLICE_MS / 1000)  # its output is closed, and it is about to end
        return piece

    def _keep_errors(self) -> bool:
        """Keep the next bytes of its standard error. Returns whether there were any."""
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self._stderr, PIECE)
            self._errors += piece
            del self._errors[:-STDERR_KEPT]
            return bool(piece)
        return False

    def stderr(self) -> list[str]:
        """The last lines of its standard error so far."""
        while self._close.alive and self._keep_errors():
            pass
        return [short(line) for line in self._errors.decode(errors="replace").splitlines()[-STDERR_SHOWN:]]

    def end(self) -> list[str]:
        """End it and its process group, and return the last lines of its standard error."""
        subprocesses.end(self._process)
        lines = self.stderr()
        self._close()
        return lines


def _close(process: "subprocess.Popen[bytes]") -> None:
    """End a process and close its pipes."""
    subprocesses.end(process)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


class Node:
    """One manager of a node: the methods of `kvconform.protocol.HybridImplementation`, each a line and its answer."""

    def __init__(self, config: Config, factory: "NodeFactory", process: Process) -> None:
        """A manager of these sizes. The header is sent before the first operation."""
        self._config, self._factory, self._process = config, factory, process
        self._header = encode(Header(VERSION, f"kvspec {__version__}", config)) + b"\n"

    def ask(self, op: Operation[Any]) -> Any:
        """Have the node carry `op` out, and return its answer.

        Raises:
            Refusal: the node refused it. NodeFault: there is no answer in time, or it is invalid; the node is then
            ended.
        """
        tag = str(op.__struct_config__.tag)
        try:
            line = self._process.exchange(self._header + encode(op) + b"\n", tag, self._factory.seconds)
            self._header = b""
            self._take(line, tag, op)
        except NodeFault as fault:
            fault.stderr = self._process.end()
            if fault.late:
                self._factory.seconds = self._factory.limit / AFTER_LATE
            raise
        self._process.last = tag
        if op.refused is not None:
            refusal = Refusal(None, op.refused.reason)
            refusal.refused = op.refused
            raise refusal
        return op.obs

    def _take(self, line: bytes, tag: str, op: Operation[Any]) -> None:
        """Set the answer of `op` from a line.

        Raises:
            NodeFault: the line has no answer.
        """
        try:
            reply = _replies[type(op)].decode(line)
            op.obs, op.refused = reply.obs, reply.refused
            check_operation(op, self._config)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OutOfRange) as error:
            raise NodeFault(f"the answer to {tag} cannot be used: {short(str(error))}") from error
        if reply.op != tag:
            raise NodeFault(
                f"{tag} is answered by an answer to {reply.op}; the operation before it is {self._process.last}"
            )
        if (op.obs is None) == (op.refused is None):
            which = "neither obs nor refused" if op.obs is None else "both obs and refused"
            raise NodeFault(f"the answer to {tag} has {which}")


def _method(operation: Callable[..., Operation[Any]]) -> Callable[..., Any]:
    return lambda node, *arguments: node.ask(operation(*arguments))


for _operation in ANSWERS:
    setattr(Node, str(_operation.__struct_config__.tag), _method(_operation))


def _read_hello(line: bytes) -> Hello:
    try:
        hello = msgspec.json.decode(line, type=Hello)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NodeFault(f"its first line is no hello: {short(str(error))}") from error
    if not 1 <= hello.kvspec <= VERSION:
        raise NodeFault(f"it speaks version {hello.kvspec} of the format; versions 1 to {VERSION} are known")
    return hello


class NodeFactory:
    """Makes managers of a node, one at a time: each ends the previous one."""

    def __init__(self, name: str) -> None:
        """Start the command of `exec:COMMAND` and read its hello.

        Raises:
            LoadError: it cannot be started, or does not begin with a hello.
        """
        limit = os.environ.get(SECONDS, "10")
        try:
            self._command = shlex.split(name.removeprefix("exec:"))
        except ValueError as error:
            raise LoadError(f"implementation {name!r}: {error}") from error
        if not self._command:
            raise LoadError(f"implementation {name!r} names no command")
        if not limit.replace(".", "", 1).isdecimal():
            raise LoadError(f"{SECONDS} is {limit!r}, no number of seconds")
        self.limit = self.seconds = float(limit)
        """Seconds until a hello, and until an answer."""
        try:
            self._process, self.hello = self._started()
        except NodeFault as fault:
            reason = "; ".join([str(fault), *fault.stderr])
            raise LoadError(f"implementation {name!r} cannot be started: {reason}") from fault
        self._used = False
        self.lacks = self.hello.unsupported
        for policy, ways in self.hello.policies.items():
            if policy not in POLICIES:
                self._process.end()
                raise LoadError(f"implementation {name!r}: no policy {policy!r}; there are {', '.join(POLICIES)}")
            setattr(self, policy, ways)

    def _started(self) -> tuple[Process, Hello]:
        """A new process, and its hello.

        Raises:
            NodeFault: it cannot be started, or does not begin with a hello.
        """
        try:
            process = Process(self._command)
        except OSError as error:
            raise NodeFault(str(error.strerror)) from error
        try:
            line = process.exchange(b"", "hello", self.limit)
            return process, _read_hello(line)
        except NodeFault as fault:
            fault.stderr = process.end()
            raise

    def __call__(self, config: Config) -> Implementation:
        """A fresh manager of these sizes.

        Raises:
            NodeFault: the process could not be started anew.
        """
        if self._used and not (self.hello.reset and self._process.running):
            self._process.end()
            self._process, _ = self._started()
        self._used = True
        return cast("Implementation", Node(config, self, self._process))

    def stderr(self) -> list[str]:
        """The last lines of the node's standard error so far."""
        return self._process.stderr()


def shown_stderr(factory: object) -> list[str]:
    """The last lines of standard error of a node, for a finding; none of an implementation in this process."""
    return [f"its standard error: {line}" for line in factory.stderr()] if isinstance(factory, NodeFactory) else []
