"""SGLang's tenants: the situations in which keys must differ with the contents come about, and their keys differ."""

import json
import logging
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kvattach.patches import Patches
from kvattach.sglang.hooks import Attached
from kvlab.device import Event, Stream
from kvlab.goals import kept_apart
from kvlab.matrix.memory import Watched
from kvlab.sglang import driver
from kvlab.sglang.issues import fix
from kvlab.sglang.release import load
from tests.kvlab.checkout import release_of
from tests.kvlab.driven import driven


@pytest.mark.slow
def test_equal_tokens_of_two_tenants_reloaded_adapters_and_weights_that_change_under_requests_come_about() -> None:
    command = [sys.executable, "-m", "tests.kvlab.test_sglang_tenants", str(release_of("0.5.23"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert not done.returncode, done.stderr
    seen = json.loads(done.stdout)
    assert seen.pop("found") == []
    assert min(seen.values()) > 0, seen


@pytest.mark.slow
def test_keys_without_salt_adapter_or_image_and_weights_without_a_flush_are_found() -> None:
    injected = {
        "key: adapter": "MEM-CONTENT/other",
        "key: found": "MEM-CONTENT/other",
        "weights: no flush": "MEM-CONTENT/other",
        "image: one bit": "MEM-NAME/content",
        "image: neighbour": "MEM-NAME/content",
    }
    assert driven(range(0), range(400), [*injected]).codes == injected


def main(place: str) -> None:
    """Print how often each situation came about, and the codes of what is found though the known issues are fixed."""
    logging.disable(logging.CRITICAL)
    release = load(Path(place))
    fix(release, Patches())
    checked = Watched()
    attached = Attached(release, checked, Stream, Event)
    seen = dict.fromkeys(("apart", "reloaded", "kept by requests"), 0)
    paths = defaultdict[str, set[str]](set)

    def loaded(_: None, __: Any, ___: Any, message: Any) -> None:
        paths[message.lora_name].add(message.lora_path)

    def replaced(_: None, answer: tuple[bool, str], __: Any, message: Any, *___: Any) -> None:
        seen["kept by requests"] += bool(message.flush_cache and not answer[0])

    attached.hooks.hook(release.scheduler.Scheduler, "load_lora_adapter", after=loaded)
    attached.hooks.hook(release.weight_updater, "flush_cache_after_weight_update", after=replaced)
    for seed in range(20):
        paths.clear()
        driver.run(release, seed, attached, host=False, report=checked.find)
        seen["apart"] += kept_apart(checked.recorded)
        seen["reloaded"] += any(len(one) > 1 for one in paths.values())
    print(json.dumps(seen | {"found": [finding.code for _, finding in checked.found]}))


if __name__ == "__main__":
    main(sys.argv[1])
