"""vLLM's own scheduler, run without a model: put your workload, your plugin, your connector here."""

from kvlab.vllm.engine import make_request, make_scheduler
from kvlab.vllm.workload import Workload


def test_two_requests_with_one_prompt() -> None:
    """The second finds the first's blocks in the prefix cache."""
    from vllm.v1.outputs import ModelRunnerOutput

    work = Workload(blocks=20)
    scheduler = make_scheduler(work)
    for request in ("a", "b"):
        scheduler.add_request(make_request(work, request, list(range(1, 14)), max_tokens=5))
        while scheduler.has_requests():
            output = scheduler.schedule()
            names = list(output.num_scheduled_tokens)
            places = {name: place for place, name in enumerate(names)}
            sampled = [[7] for _ in names]  # what a model would have said
            scheduler.update_from_output(output, ModelRunnerOutput(names, places, sampled))
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == work.blocks - 1  # block 0 is padding
