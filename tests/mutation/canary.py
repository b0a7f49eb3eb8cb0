"""Puts the defects of `kvcuda_mutants.py` in, one at a time, and prints whether the canary alone finds each.

python -m tests.mutation.canary [TEXT..]    # only mutants of modules, or with texts, that have one of TEXT in them

Traffic runs on the device manager under the canary, on late streams and in small blocks, and then the scenes of
`canary_scenes.py`; no answer is checked and no digest is compared. An error of the manager itself counts as found, and
is marked: no pass has read a wrong slot then.

Exit status 1 where a mutant is silent and the table does not say that passes read and write the same (`unread`), or
where one that is said to be so is found.
"""

import multiprocessing
import os
import shutil
import sys
import tempfile
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

from tests.mutation.defects import KVCUDA, changed
from tests.mutation.kvcuda_mutants import MUTANTS, Mutant

SECONDS = 600
"""After these a mutant hangs."""

# Slow imports, once for all; kvcuda itself is each attempt's own.
os.environ["TRITON_INTERPRET"] = "1"
for _name in ("torch", "triton.language", "kvref.scheduler"):
    import_module(_name)


def attempt(mutant: Mutant | None) -> str:
    """The result of the traffic with a defect, in a line; without one, its result on the clean code."""
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "kvcuda"
        shutil.copytree(KVCUDA, code, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            (code / mutant.module).write_text(changed(KVCUDA, mutant))
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe()
        process = fork.Process(target=_run, args=(folder, theirs))
        process.start()
        theirs.close()
        try:
            said = str(ours.recv()) if ours.poll(SECONDS) else "it hangs"
        except EOFError:
            said = "it ends the process"
        process.kill()
        process.join()
    return said


def _run(folder: str, answer: Connection) -> None:
    sys.path.insert(0, folder)
    try:
        answer.send(import_module("tests.mutation.canary_traffic").first_found())
    except BaseException as error:
        answer.send(f"raised: {type(error).__name__}: {error}".splitlines()[0])


def main(*wanted: str) -> int:
    """Try the mutants with one of `wanted` in them, or all, and print what became of each; the exit status."""
    clean = attempt(None)
    print(f"clean: {clean}", flush=True)
    if clean != "silent":
        return 1
    as_expected = explained = 0
    texts = [(mutant, mutant.module + mutant.old + mutant.new) for mutant in MUTANTS]
    chosen = [mutant for mutant, text in texts if not wanted or any(one in text for one in wanted)]
    for mutant in chosen:
        said = attempt(mutant)
        silent = said == "silent"
        as_expected += not silent and not mutant.unread
        explained += silent and bool(mutant.unread)
        old, new = (" ".join(text.split()) for text in (mutant.old, mutant.new))
        print(f"{'' if silent == bool(mutant.unread) else 'WRONG '}{mutant.module}: {old} -> {new or 'nothing'}")
        print(f"    {said}{f': {mutant.unread}' if silent else ''}", flush=True)
    wrong = len(chosen) - as_expected - explained
    print(f"{as_expected} as expected, {explained} change nothing that is read or written, {wrong} not as said")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
