"""The story of a defect: what the code does, and what happens in the shortest trace that shows it."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from kvconform.findings.finding import Finding
from kvconform.findings.text import show_finding
from kvconform.findings.wording import filled, printable, pull_requests
from kvconform.gallery.mutants.bug import SYNTHETIC, Bug


def describe_bug(console: Console, bug: Bug, finding: Finding | None, vectors: Sequence[str] = ()) -> None:
    """Print the story of a defect, and the vectors that find it; without a finding only what is known of it."""
    for line in told(bug):
        console.print(Text(filled(printable(line), console.width, "", "    ")), soft_wrap=True)
    if vectors:
        line = f"  Found by {len(vectors)} vector{'s'[: len(vectors) != 1]}: {', '.join(vectors)}"
        console.print(Text(filled(line, console.width, "", "    ")), soft_wrap=True)
    console.print()
    if finding is None:
        console.print("  It was not found, so there is nothing to tell.")
    else:
        show_finding(console, finding)


def told(bug: Bug) -> Iterator[str]:
    """What is known of a defect, in a few lines."""
    yield f"{bug.name}: {bug.title}"
    yield f"  In an engine: {bug.symptom}"
    if bug.synthetic:
        yield f"  Synthetic: {SYNTHETIC}. The rule comes from {pull_requests(bug.source)}."
    else:
        yield f"  Described in: {pull_requests(bug.source)}"
