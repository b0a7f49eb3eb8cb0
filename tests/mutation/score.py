"""Prints how a mutation run came out: the score, and every mutant that no test noticed.

python score.py FOLDER    # where mutmut ran
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

STATUS = {0: "survived", 1: "killed", 3: "killed", 5: "no tests", 33: "no tests", None: "not run"}
"""mutmut's exit codes; a mutant that runs out of time or memory, or crashes, has some other."""


def verdicts(folder: Path) -> Iterator[tuple[str, str]]:
    """Each mutant's name and what became of it."""
    for path in sorted(folder.glob("mutants/src/**/*.meta")):
        for name, code in json.loads(path.read_text())["exit_code_by_key"].items():
            yield name, STATUS.get(code, "timeout")


def main(folder: Path) -> None:
    """Print the score and the survivors."""
    found = dict(verdicts(folder))
    counts = Counter(found.values())
    for name, status in found.items():
        if status in ("survived", "no tests"):
            print(f"{status}: {name}")
    noticed, tried = counts["killed"] + counts["timeout"], len(found) - counts["not run"]
    print(
        ", ".join(f"{counts[status]} {status}" for status in ("killed", "timeout", "survived", "no tests", "not run"))
    )
    print(f"{noticed} of {tried} mutants were noticed: {100 * noticed / max(1, tried):.1f} %")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
