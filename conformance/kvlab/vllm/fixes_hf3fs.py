"""Fixes of known issues of vLLM's `HF3FSKVConnector`."""

import importlib
from typing import Any

from kvattach.patches import Patches
from kvlab.injection import mend, where_driven
from kvlab.vllm.hf3fs import HF3FS, Names, prepared


class Named(list[int]):
    """Tokens of a request: a slice of them also has the request's adapter, its salt, and its images there."""

    def __init__(self, tokens: list[int], request: Any) -> None:
        """The first tokens of a request."""
        super().__init__(tokens)
        self._request = request

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        if not isinstance(place, slice):
            return found
        lora, images = self._request.lora_request, self._request.mm_features or ()
        places = [(image.identifier, image.mm_position.offset, image.mm_position.length) for image in images]
        there = [one for one in places if place.start < one[1] + one[2] and one[1] < place.stop]
        return [*found, (lora and lora.lora_path, self._request.cache_salt, there)]


def name_all(patches: Patches) -> None:
    """A key depends on a request's adapter, salt and images, too."""
    module: Any = importlib.import_module(f"{HF3FS}.hf3fs_connector")
    made, metadata = module.HF3FSKVConnector, module.HF3FSRequestMetadata
    matched, hashes = made.get_num_new_matched_tokens, made._generate_block_hashes
    built = metadata.from_scheduling_state

    def get_num_new_matched_tokens(self: Any, request: Any, *args: Any) -> Any:
        self.kvspec_request = request
        return matched(self, request, *args)

    def from_scheduling_state(state: Any, *args: Any) -> Any:
        answer = built(state, *args)
        if answer is not None:
            answer.token_ids = Named(answer.token_ids, state.request)
        return answer

    def _generate_block_hashes(self: Any, tokens: list[int], *args: Any) -> Any:
        return hashes(self, tokens if isinstance(tokens, Named) else Named(tokens, self.kvspec_request), *args)

    patches.set(made, "get_num_new_matched_tokens", get_num_new_matched_tokens)
    patches.set(made, "_generate_block_hashes", _generate_block_hashes)
    patches.set(metadata, "from_scheduling_state", staticmethod(from_scheduling_state))


def begin_again(patches: Patches) -> None:
    """The blocks of a resumed request replace those that it had."""
    made: Any = importlib.import_module(f"{HF3FS}.hf3fs_connector").HF3FSKVConnector
    process = made._process_cached_requests

    def _process_cached_requests(self: Any, output: Any, metadata: Any) -> None:
        cached = output.scheduled_cached_reqs
        for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if name in cached.resumed_req_ids:
                state = self._scheduling_states[name]
                state.token_ids, state.allocated_block_ids = state.request.all_token_ids[:computed], []
        process(self, output, metadata)

    patches.set(made, "_process_cached_requests", _process_cached_requests)


def await_saves(patches: Patches) -> None:
    """The blocks of a preempted request are free when all saves are done."""
    from vllm.v1.core.sched.scheduler import Scheduler

    made: Any = importlib.import_module(f"{HF3FS}.hf3fs_connector").HF3FSKVConnector
    preempt: Any = Scheduler._preempt_request

    def _preempt_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.connector, made):
            Names.now.save()
        return preempt(self, *args, **kwargs)

    patches.set(Scheduler, "_preempt_request", _preempt_request)


def await_loads(patches: Patches) -> None:
    """An aborted request whose load is under way ends with its load, and only once."""
    from vllm.v1.core.sched.scheduler import Scheduler

    module: Any = importlib.import_module(f"{HF3FS}.hf3fs_connector")
    made, operations = module.HF3FSKVConnector, module.AsyncOperationManager
    finished, updated = operations.get_finished_operations, Scheduler._update_from_kv_xfer_finished

    def get_finished_operations(self: Any, ended: set[str]) -> Any:
        return finished(self, ended - self._load_futures.keys())

    def _update_from_kv_xfer_finished(self: Any, output: Any) -> None:
        if isinstance(self.connector, made):
            output.finished_sending -= output.finished_recving | (output.finished_sending - self.requests.keys())
        updated(self, output)

    patches.set(operations, "get_finished_operations", get_finished_operations)
    patches.set(Scheduler, "_update_from_kv_xfer_finished", _update_from_kv_xfer_finished)


def load_again(patches: Patches) -> None:
    """A load that fails is tried again."""
    operations: Any = importlib.import_module(f"{HF3FS}.hf3fs_connector").AsyncOperationManager
    handle, fail = operations._handle_load_task, operations._fail_task

    def _handle_load_task(self: Any, task: Any) -> None:
        self.kvspec_task = task
        handle(self, task)

    def _fail_task(self: Any, operation: str, *args: Any) -> None:
        if operation == "Loaded":
            self._load_queue.put(self.kvspec_task)
        else:
            fail(self, operation, *args)

    patches.set(operations, "_handle_load_task", _handle_load_task)
    patches.set(operations, "_fail_task", _fail_task)


def keep_names(patches: Patches) -> None:
    """A save that fails frees only the pages that it was given: a key that is known keeps its page."""
    operations: Any = importlib.import_module(f"{HF3FS}.hf3fs_connector").AsyncOperationManager
    given = 'key_pairs = [(hash_val, "") for hash_val in block_hashes]'
    known = "known = self._connector._metadata_client.batch_key_exists(block_hashes)"
    freed = "self._rank, [], page_indices"
    new = "self._rank, [], [page for page, kept in zip(page_indices, known) if not kept]"
    place = operations, "_handle_save_task"
    mend(patches, "names kept", (*place, given, f"{given}; {known}"), (*place, freed, new))


FIXES = tuple(
    where_driven(prepared, fix) for fix in (name_all, begin_again, await_saves, await_loads, load_again, keep_names)
)
