"""A node around the reference manager: all that a node needs to speak the protocol."""

import sys

import msgspec

from kvconform.features import POLICIES
from kvconform.protocol import perform
from kvref.manager import Manager
from kvspec.events import EVENTS, Config, Event, Refusal

read_op = msgspec.json.Decoder(EVENTS).decode
HELLO = {
    "kvspec": 2,
    "name": "reference node",
    "version": "1",
    "policies": {policy: getattr(Manager, policy) for policy in POLICIES if hasattr(Manager, policy)},
    "reset": True,
}


def answer(manager: Manager, op: Event) -> Event:
    """The operation, with its answer."""
    try:
        op.obs = perform(manager, op)
    except Refusal as refusal:
        op.refused = refusal.refused
    return op


def respond(line: object) -> None:
    """Write one line."""
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.flush()


respond(HELLO)
manager: Manager
for asked in sys.stdin.buffer:
    if b'"config"' in asked and "config" in (header := msgspec.json.decode(asked)):
        manager = Manager(msgspec.convert(header["config"], Config))
    else:
        respond(answer(manager, read_op(asked)))
