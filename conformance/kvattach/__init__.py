"""Hooks into engines as they run: what an engine does to memory, told in the law's events.

hooks, patches, run     what all attachments share: hooks that never disturb the engine, one request's stretch of work
streams, device         what waits for what, observed on a device, or decided by a driver where there is none
live, switch            an engine that runs for real, and what the environment variable `KVSPEC` switches on
judged, planting, trial an engine's scheduler driven and judged at once, with defects planted in its code
requests                which vectors find planted defects, through an engine's adapter
checkout                where an engine lies that comes as one

One folder an engine: its hooks, a driver, its defects.

Not here: an engine's classes behind the protocol (`engines`), the judge of a written trace (`memory`), the law itself.
"""
