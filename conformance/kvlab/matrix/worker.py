"""Checks one release at one level in a separate process, as a process can hold only one engine.

The task is one JSON object, the only argument; the report is one line of JSON at the end of standard output.
"""

import logging
import sys

import msgspec

from kvlab.matrix import memory, requests
from kvlab.matrix.report import REPORTS, AnyReport, Task
from kvlab.stubs import EngineError


def work(task: Task) -> AnyReport:
    """The findings of one release. A release that does not fit adapter, driver or hooks is not supported."""
    logging.disable(logging.CRITICAL)
    try:
        return memory.drive(task) if task.level == "memory" else requests.check(task)
    except EngineError as error:
        reason = str(error)
    except (AttributeError, ImportError, IndexError, KeyError, TypeError, ValueError) as error:
        # The release is newer than the adapter or the hooks.
        fits = "the hooks do" if task.level == "memory" else "the adapter does"
        reason = f"{fits} not fit it: {type(error).__name__}: {error}"
    return REPORTS[task.level](task.engine, task.release, " ".join(reason.split()))


if __name__ == "__main__":
    report = work(msgspec.json.decode(sys.argv[1], type=Task))
    sys.stdout.write("\n" + msgspec.json.encode(report).decode() + "\n")
