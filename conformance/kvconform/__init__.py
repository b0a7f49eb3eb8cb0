"""The conformance suite: a folder for each task.

Modules beside the folders are for all of them: `protocol` (the methods that an engine implements), `features` (those
that it may lack), `proxy` (an engine checked by the oracle), `implementations` (their names), `node` (an implementation
in another process), `scheduler_state` (the scheduler's part of an adapter), `signals`, `subprocesses`, `errors` and
`console`.
"""
