"""Engines' threads, which run one at a time until they wait. The drive decides which runs, by the seed.

An engine's own loops run unchanged. If they would wait for a socket, a queue or a clock, the stub calls `Turns.wait`.
"""

import threading
from collections.abc import Callable
from typing import ClassVar


class Over(BaseException):
    """The drive has ended, or the thread's server has. No engine catches this."""


class Task:
    """One thread of a server. It starts in its first turn."""

    def __init__(self, server: str, name: str, body: Callable[[], object]) -> None:
        """Make a thread of `server`."""
        self.server, self.name = server, name
        self.until: Callable[[], bool] = lambda: True
        """Whether its wait is over."""
        self.error: BaseException | None = None
        self.ended = self.stopped = False
        self.go = threading.Semaphore(0)
        self._body = body
        self._thread = threading.Thread(target=self._run, name=f"{server} {name}", daemon=True)

    def begin(self) -> None:
        """Let the thread wait for its first turn."""
        self._thread.start()

    def _run(self) -> None:
        self.go.acquire()
        turns = Turns.current
        try:
            if not self.stopped:
                self._body()
        except Over:
            pass
        except BaseException as error:
            self.error = error
        self.ended = True
        turns.back.release()

    def join(self) -> None:
        """Wait for the end of the thread."""
        self._thread.join()


class Turns:
    """The threads of one drive."""

    current: ClassVar["Turns"]

    def __init__(self) -> None:
        """Begin without threads."""
        self.back = threading.Semaphore(0)
        self.running: Task | None = None
        self._tasks: list[Task] = []
        Turns.current = self

    def add(self, task: Task) -> None:
        """Add a thread."""
        self._tasks.append(task)
        task.begin()

    def ready(self) -> list[Task]:
        """The threads that can run now."""
        return [task for task in self._tasks if not task.ended and task.until()]

    def turn(self, task: Task) -> None:
        """Let a thread run until it waits again or ends.

        Raises:
            BaseException: the error that ended the thread.
        """
        self.running = task
        task.go.release()
        self.back.acquire()
        self.running = None
        if task.error is not None:
            raise task.error

    def wait(self, until: Callable[[], bool] = lambda: True) -> None:
        """Called in a thread: let others run, and return in a later turn in which `until` holds.

        Raises:
            Over: the drive or the server has ended.
        """
        task = self.running
        assert task is not None, "the drive itself waits for nothing"
        task.until = until
        self.back.release()
        task.go.acquire()
        if task.stopped:
            raise Over

    def end(self, server: str) -> None:
        """End the threads of a server, wherever they wait."""
        self._end([task for task in self._tasks if task.server == server])

    def close(self) -> None:
        """End all threads, wherever they wait."""
        if self.running is not None:  # it was still running when the drive ended
            self.back.acquire()
        self._end(self._tasks)

    def _end(self, tasks: list[Task]) -> None:
        for task in tasks:
            task.stopped = True
            if not task.ended:
                task.go.release()
                self.back.acquire()
            task.join()
