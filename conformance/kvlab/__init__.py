"""Real engines.

releases  `kvspec engines`: releases, kept in a folder of their own
standins  how an engine's own classes run from a bare wheel or a checkout
sglang/   SGLang's memory classes behind the protocol
sglang_jax/ sglang-jax's scheduler behind the protocol
recorder/ what a running SGLang process does, as a trace
matrix/   `kvspec matrix`: which rules each release breaks

Not here: what an engine implements (`kvconform.protocol`), and what it may lack (`kvconform.features`).
"""
