"""Changes of the engine in a real server: the defects, and the fixes of known issues, that drives also have."""

import importlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from kvattach.live import After
from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.injection import Defect, inject_fault

_log = logging.getLogger("kvspec")


def wait_for_engine(named: str) -> None:
    """Inject a defect into an engine's scheduler or manager once it is imported; `named` is `ENGINE: NAME`.

    The process may also import another engine: SGLang imports transformers.
    """
    engine, _, name = named.partition(": ")
    module, defects = DEFECTS[engine]
    sys.meta_path.insert(0, After({module}, lambda _: _inject(module, defects, name)))


def wait_to_fix(engine: str) -> None:
    """Fix an engine's known issues once its scheduler or manager is imported."""
    module, _ = DEFECTS[engine]
    sys.meta_path.insert(0, After({module}, lambda _: _fix(engine)))


def _sglang() -> Release:
    """The release, with the tree of its server: of two generations it has the later one."""
    root = Path(importlib.import_module("sglang").__path__[0])
    return Release(root, Release(root).trees[-1])


def _of_sglang() -> list[Defect]:
    from kvlab.sglang.faults import defects

    return defects(_sglang())


def _of_transformers() -> list[Defect]:
    from kvattach.transformers.modules import imported
    from kvlab.transformers.faults import defects

    return defects(imported())


def _of_sglang_jax() -> list[Defect]:
    from kvattach.sglang_jax.modules import imported
    from kvlab.sglang_jax.faults import defects

    return defects(imported())


def _of_vllm() -> list[Defect]:
    from kvlab.vllm.faults import defects
    from kvlab.vllm.faults_chunks import chunk_defects
    from kvlab.vllm.faults_nixl import pull_defects
    from kvlab.vllm.faults_offload import offloading_defects

    return [*defects(), *pull_defects(), *offloading_defects(), *chunk_defects()]


DEFECTS: dict[str, tuple[str, Callable[[], list[Defect]]]] = {
    "sglang": ("sglang.srt.managers.scheduler", _of_sglang),
    "sglang-jax": ("sgl_jax.srt.managers.scheduler", _of_sglang_jax),
    "vllm": ("vllm.v1.core.sched.scheduler", _of_vllm),
    "transformers": ("transformers.generation.continuous_batching.continuous_api", _of_transformers),
}
"""Engine -> the module after whose import a defect is injected, and its defects."""


def _fix_sglang(patches: Patches) -> None:
    from kvlab.sglang.issues import fix

    fix(_sglang(), patches)


def _fix_transformers(patches: Patches) -> None:
    from kvattach.transformers.modules import imported
    from kvlab.transformers.fixes import fix

    fix(imported(), patches)


def _fix_sglang_jax(patches: Patches) -> None:
    from kvattach.sglang_jax.modules import imported
    from kvlab.sglang_jax.fixes import fix

    fix(imported(), patches)


FIXES: dict[str, Callable[[Patches], None]] = {
    "sglang": _fix_sglang,
    "sglang-jax": _fix_sglang_jax,
    "transformers": _fix_transformers,
}
"""Engine -> the fixes of its known issues. Those of vLLM are for parts that only drives load."""


def _fix(engine: str) -> None:
    try:
        FIXES[engine](Patches())
        _log.warning("kvspec: the known issues of %s are fixed in this process", engine)
    except Exception:
        # Otherwise the known issues would look as if their fixes did not help.
        _log.exception("kvspec: the known issues of %s could not be fixed", engine)
        raise SystemExit(2) from None


def _inject(module: str, defects: Callable[[], list[Defect]], name: str) -> None:
    try:
        (defect,) = [one for one in defects() if one.name == name]
        _inject_everywhere(defect, module.partition(".")[0])
        _log.warning("kvspec: the fault %r is in this process", name)
    except Exception:
        # Without its fault a server would look as if the fault had not been found.
        _log.exception("kvspec: the fault %r could not be put in", name)
        raise SystemExit(2) from None


def _inject_everywhere(defect: Defect, package: str) -> None:
    """Inject a defect. Modules of the package that have imported the function by name get the new one."""
    functions = [(owner, name, vars(owner)[name]) for owner, name, *_ in defect.places]
    inject_fault(defect, Patches())
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(f"{package}.")]
    for owner, name, original in functions:
        for module in modules:
            if vars(module).get(name) is original:
                setattr(module, name, vars(owner)[name])
