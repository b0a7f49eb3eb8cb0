"""The canary on running engines: hooks pass the reads and writes of each forward pass to `kvcuda.canary`.

switch          the environment variable `KVSPEC_CANARY`
watch           the common part of all engines: prompts, violations, log or raise
finding         a violation as a `Finding`, with the recorded trace beside it
vllm, vllm_v1, sglang    the hooks
"""
