"""A node that answers every operation with nothing observed, until it is asked to extend: there it has a bad habit."""

import json
import os
import signal
import sys
import time

HABIT, PIDS = sys.argv[1:]


def note(pid: int) -> None:
    """Write down a process that must not stay."""
    with open(PIDS, "a") as pids:  # noqa: PTH123
        pids.write(f"{pid}\n")


def respond(line: object) -> None:
    """Write one line."""
    print(line if isinstance(line, str) else json.dumps(line), flush=True)


def fork(then: object) -> None:
    """Leave a child that keeps the output open."""
    child = os.fork()
    if child == 0:
        time.sleep(100)
    note(child)
    if then == "end":
        os._exit(0)


def misbehave() -> None:
    """Answer `extend` badly."""
    right = {"op": "extend", "obs": {}}
    print("about to misbehave", file=sys.stderr, flush=True)
    match HABIT:
        case "late":
            time.sleep(100)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(100)
        case "twice":
            respond(json.dumps(right) + "\n" + json.dumps(right))
        case "twice, later":
            respond(right)
            time.sleep(0.2)
            respond(right)
        case "out of order":
            respond({"op": "match_prefix", "obs": {}})
        case "long":
            respond("x" * 10_000_000)
        case "endless":
            while True:
                sys.stdout.write("x" * 10_000_000)
        case "forks":
            fork("end")
        case "forks and hangs":
            fork("hang")
            time.sleep(100)
        case "dies":
            os._exit(3)
        case "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "closes":
            os.close(1)
            time.sleep(100)
        case "half":
            sys.stdout.write('{"op": "ext')
            sys.stdout.flush()
            os._exit(0)
        case "chatters":
            respond(right)
            while True:
                print("x" * 1000, file=sys.stderr)
        case answer:
            respond(answer)


note(os.getpid())
respond({"kvspec": 2, "name": "bad", "reset": True})
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("op") == "extend":
        misbehave()
    elif "op" in asked:
        respond({"op": asked["op"], "obs": {}})
