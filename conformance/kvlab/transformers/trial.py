"""Drives transformers' continuous batching with hooks."""

import importlib
import sys
from functools import partial
from pathlib import Path

from kvattach.transformers.hooks import Attached
from kvattach.transformers.modules import imported
from kvlab.drives import Attachment, Known, Trial
from kvlab.issues import issues_of
from kvlab.model import differences, sharp_model
from kvlab.stubs import EngineError, require
from kvlab.transformers.driver import Driver
from kvlab.transformers.faults import defects
from kvlab.transformers.fixes import fix
from kvspec.memory.events import Failed

REQUESTS = 20
"""The number of requests of one run."""


def trial(folder: Path) -> Trial:
    """The release in `folder`; its dependencies are installed.

    Raises:
        EngineError: the folder holds no release, or the process holds another one.
    """
    if not (folder / "transformers" / "generation" / "continuous_batching").is_dir():
        raise EngineError(f"{folder} holds no transformers with continuous batching")
    require("transformers", "torch", "psutil", "tokenizers", "safetensors")
    sys.path.insert(0, str(folder))
    loaded = Path(importlib.import_module("transformers").__path__[0]).parent
    if loaded != folder.resolve():
        raise EngineError(f"this process holds another transformers already: {loaded}")
    engine, model = imported(), sharp_model()
    drive = Attachment(partial(Attached, engine))

    def run(seed: int) -> None:
        driver = Driver(model, seed, REQUESTS)
        drive.ended(driver.run(), watched=True)
        for one in differences(model, list(driver.answers.values())):
            words = f"wrong token: request {one.rid} position {one.position}: {one.found} and not {one.expected}"
            drive.attached.hooks.emit(Failed("assertion", words))

    known = [Known(issue) for issue in issues_of("transformers").at("memory")]
    return Trial("transformers", drive.attach, run, defects(engine), partial(fix, engine), known)
