"""The description of a defect: its code, and the shortest trace that shows it."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from kvconform.findings.finding import Finding
from kvconform.findings.text import show_finding
from kvconform.findings.wording import filled, printable, pull_requests
from kvconform.gallery.mutants.bug import SYNTHETIC, Bug


def describe_bug(console: Console, bug: Bug, finding: Finding | None, vectors: Sequence[str] = ()) -> None:
    """Print the description of a defect, the vectors that find it, and its finding, if any."""
    for line in summary(bug):
        console.print(Text(filled(printable(line), console.width, "", "    ")), soft_wrap=True)
    if vectors:
        line = f"  Found by {len(vectors)} vector{'s'[: len(vectors) != 1]}: {', '.join(vectors)}"
        console.print(Text(filled(line, console.width, "", "    ")), soft_wrap=True)
    console.print()
    if finding is None:
        console.print("  It was not found.")
    else:
        show_finding(console, finding)


def summary(bug: Bug) -> Iterator[str]:
    """A summary of a defect, in a few lines."""
    yield f"{bug.name}: {bug.title}"
    yield f"  In an engine: {bug.symptom}"
    if bug.synthetic:
        yield f"  Synthetic: {SYNTHETIC}. The rule comes from {pull_requests(bug.source)}."
    else:
        yield f"  Described in: {pull_requests(bug.source)}"
