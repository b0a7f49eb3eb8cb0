"""Real engines: their own classes are driven on a CPU, without a model.

releases   `kvspec engines install`: releases in a folder of their own
stubs      stubs for modules that are missing or need a GPU
device     streams and events whose progress a driver decides
traffic    requests that share prompts, aborts and pauses, for all drivers
tokens     the tokens that are due; `goals`: events that the runs of a driver must show
drives     a driver with hooks and the memory checker; `trial`: `kvspec engines drive` and `inject`
injection  faults in an engine's own code; `vector_trial`: the vectors that find them
issues     known issues of engines
serving/   an engine's own server with clients
matrix/    `kvspec matrix`: the rules that each release breaks
sglang/, sglang_jax/, mini_sglang/, nano_vllm/, vllm/: drivers, faults, fixes and known issues of one engine

Not here: the protocol of an implementation (`kvconform.protocol`), its features (`kvconform.features`), and hooks
(`kvattach`).
"""
