"""What SGLang's releases are known to do wrong with streaming sessions, and servers that bring it out."""

from collections.abc import Callable
from dataclasses import replace

from kvlab.drives import Known
from kvlab.sglang.driver import Shape
from kvlab.sglang.fixes_sessions import (
    mend_closing,
    mend_empty,
    mend_flush,
    mend_last_token,
    mend_order,
    mend_plain_turns,
    mend_preempted,
    mend_rejected,
    mend_retracted,
    mend_rows,
    mend_states,
)
from kvlab.sglang.pools import Pools

MENDS = (
    mend_retracted,
    mend_rejected,
    mend_order,
    mend_plain_turns,
    mend_rows,
    mend_preempted,
    mend_states,
    mend_closing,
    mend_flush,
    mend_last_token,
    mend_empty,
)


def of_sessions(alone: Callable[..., Known], shape: Shape) -> list[Known]:
    """Each looked for on servers of this shape with clients, the others mended."""
    chats = replace(
        shape,
        requests=40,
        page_size=2,
        pages=60,
        prompts=3,
        outputs=6,
        sessions=3,
        pools=Pools(cached=True, core="python"),
    )
    roomy = replace(chats, pages=300, requests=16, prompts=8, outputs=20, aborts=0.0)
    pressed = replace(chats, pages=24, retracts=5)
    states = Pools(cached=True, core="python", states=36, tracked=True, kept_every=2)
    return [
        alone(
            chats,
            mend_rejected,
            "session-rejected",
            "a turn that is rejected while another one is under way lets its session be closed or go on under that one",
        ),
        alone(
            pressed,
            mend_retracted,
            "session-retracted",
            "a turn that is retracted counts as finished: another one goes on with what it has while it waits",
        ),
        alone(
            replace(pressed, aborts=0.2),
            mend_closing,
            "session-unclosed",
            "a session whose turn was aborted while it waited again, after it was retracted, is never closed",
        ),
        alone(
            replace(pressed, retracts=0, pauses=0.3, pools=states),
            mend_flush,
            "session-flush",
            "a turn that waits keeps what it has through a flush, and others are given the same",
        ),
        alone(
            replace(chats, overlap=False, steps=3),
            mend_last_token,
            "session-last-token",
            "with drafts a slot counts the last token's KV, which nobody has computed",
        ),
        alone(
            replace(pressed, prompts=8),
            mend_empty,
            "session-empty-slot",
            "a turn of one token that is retracted leaves its session a row without pages, which no turn can be given",
            message="a reused row must carry allocated KV",
        ),
        alone(
            replace(pressed, policy="dfs-weight"),
            mend_order,
            "session-order",
            "the scheduler looks in the tree for what a waiting turn has found in its session",
        ),
        alone(
            replace(chats, chunk=2, prompts=2, pools=Pools(cached=False, core="python")),
            mend_plain_turns,
            "session-without-cache",
            "without a prefix cache a later turn that ignores ends and is longer than a chunk stops the scheduler",
        ),
        alone(
            replace(roomy, running=2, sessions=4, patient=True),
            mend_rows,
            "session-rows",
            "turns of sessions that have all rows wait for a free row",
            message="never finish",
        ),
        alone(
            replace(roomy, running=4, priorities=True, policy="fcfs"),
            mend_preempted,
            "session-preempted",
            "a turn that is thrown out for another request leaves its row to its session, and not to that request",
            message="alloc_req_slots runs out of memory",
        ),
        alone(
            replace(pressed, pools=states),
            mend_states,
            "session-state-ahead",
            "a turn that is retracted goes on from a state that has taken its last token in already",
        ),
    ]
