"""The canary on engines as they run: what their model runners are about to read and write is told to `kvcuda.canary`.

switch          what the environment variable `KVSPEC_CANARY` says
watch           what all engines share: prompts, what was found, log or raise
finding         what was found as a `Finding`, with the recorded trace beside it
vllm, vllm_v1, sglang    the hooks
"""
