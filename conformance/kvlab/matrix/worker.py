"""Checks one release at one level in a process of its own, as a process can hold one engine.

The task is one JSON object, the only argument; the report is one line of JSON at the end of standard output.
"""

import logging
import sys

import msgspec

from kvlab.matrix import memory, requests
from kvlab.matrix.report import REPORTS, AnyReport, Task
from kvlab.stubs import EngineError


def work(task: Task) -> AnyReport:
    """The findings of one release; a release that the adapter, the driver or the hooks do not fit is not supported."""
    logging.disable(logging.CRITICAL)
    try:
        return memory.drive(task) if task.level == "memory" else requests.check(task)
    except EngineError as error:
        reason = str(error)
    except (AttributeError, ImportError, IndexError, KeyError, TypeError, ValueError) as error:
        # A release that came out after the adapter or the hooks were written.
        fits = "the hooks do" if task.level == "memory" else "the adapter does"
        reason = f"{fits} not fit it: {type(error).__name__}: {error}"
    return REPORTS[task.level](task.engine, task.release, " ".join(reason.split()))


if __name__ == "__main__":
    report = work(msgspec.json.decode(sys.argv[1], type=Task))
    sys.stdout.write("\n" + msgspec.json.encode(report).decode() + "\n")
