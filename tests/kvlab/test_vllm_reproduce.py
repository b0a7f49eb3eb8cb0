"""`kvspec engines reproduce`: its runs count their events as those of `drive` and `inject` do."""

from types import SimpleNamespace
from typing import Any

import pytest

from kvlab.issues import issues_of
from kvlab.vllm import issues
from kvspec.memory.events import Failed, Pool, Take


def test_a_finding_is_at_the_event_that_is_counted_from_the_first_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run makes a memory of its own, and its third event is the finding."""
    issue = next(issue for issue in issues_of("vllm").at("memory") if issue.id == "stale-window-stored")
    runs, traces = list[int](), list[Any]()

    def attached(trace: Any, **_: bool) -> Any:
        traces.append(trace)
        return SimpleNamespace(detach=lambda: None)

    def driven(*_: Any) -> None:
        runs.append(0)
        traces[0].header("vllm", {"kv": Pool(num_pages=4)})
        traces[0].emit(Take("r.1", "kv", [1]), Take("r.1", "kv", [2]))
        if len(runs) > 1:
            traces[0].emit(Failed("assertion", "KeyError: 1", at="_remove_pending_job"))

    monkeypatch.setattr(issues, "attached", attached)
    monkeypatch.setattr(issues, "driven", driven)
    monkeypatch.setattr(issues, "fix", lambda *_, **__: None)
    found = issues.bring_out(issue)
    assert found is not None
    event, finding = found
    assert (event, finding.event, len(runs)) == (5, 3, 2)
