"""One step of a worker with a KV connector: the order in which `execute_model` calls the connector."""

from collections.abc import Callable
from typing import Any

from kvlab.device import Point, Stream


def execute(connector: Any, output: Any, get_on: Callable[[], None], *, loads_first: bool) -> tuple[Any, Point]:
    """Simulate `execute_model` for one output of the scheduler. Returns the report, and when the pass is done.

    `get_on` lets time pass. With `loads_first` loads are submitted before the pass, otherwise after it.
    """
    from vllm.v1.outputs import KVConnectorOutput

    get_on()
    connector.handle_preemptions(output.kv_connector_metadata)
    connector.bind_connector_metadata(output.kv_connector_metadata)
    if loads_first:
        connector.start_load_kv(None)
    Stream.current.queue()
    computed = Stream.current.end
    if not loads_first:
        connector.start_load_kv(None)
    connector.wait_for_save()
    get_on()
    if hasattr(KVConnectorOutput(), "failed_recving"):
        report = KVConnectorOutput(**vars(connector.get_transfer_results(output.finished_req_ids)))
    else:
        sent, received = connector.get_finished(output.finished_req_ids)
        report = KVConnectorOutput(finished_sending=sent, finished_recving=received)
    report.invalid_block_ids = connector.get_block_ids_with_load_errors()
    report.kv_connector_worker_meta = connector.build_connector_worker_meta()
    connector.clear_connector_metadata()
    return report, computed
