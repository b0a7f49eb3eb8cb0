"""Hooks into running engines: they emit the memory events of an engine.

hooks, patches     hooks that never disturb the engine; replaced attributes that can be restored
residency          one request's stay in memory, with the labels of its pages
tape               captures of hooks that never wait for a device, until they are resolved
streams            the order of streams and events, observed on a device or on the simulated one of `kvlab`
live, hooked       hooks that enter an engine's processes by themselves, and their report
switch, following  the environment variable `KVSPEC`: record, check in another process, or check at once
canary/            the canary of `kvcuda` in the model runners of engines
recorder/          operations of the request level, recorded in a running SGLang process

One folder an engine: its hooks.

Not here: drivers, faults and adapters (`kvlab`), the check of a trace (`kvconform`), the memory model (`kvspec`).
"""
