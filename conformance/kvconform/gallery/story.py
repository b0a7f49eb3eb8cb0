"""The story of a defect: what the code does, and what happens in the shortest trace that shows it."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from kvconform.findings.story import story
from kvconform.findings.wording import printable, pull_requests
from kvconform.gallery.mutants.bug import SYNTHETIC, Bug
from kvconform.vectors.runner import Demonstration
from kvspec.events import Config


def show_story(console: Console, bug: Bug, config: Config | None, shown: Demonstration | None) -> None:
    """Print the story of a defect; without a demonstration only what is known of it."""
    for line in story_of(bug, config, shown):
        console.print(Text(printable(line)), soft_wrap=True)


def story_of(bug: Bug, config: Config | None, shown: Demonstration | None) -> Iterator[str]:
    """The lines of it; without a demonstration only what is known of the defect."""
    yield f"{bug.name}: {bug.title}"
    yield f"  In an engine: {bug.symptom}"
    if bug.synthetic:
        yield f"  Synthetic: {SYNTHETIC}. The rule comes from {pull_requests(bug.source)}."
    else:
        yield f"  Described in: {pull_requests(bug.source)}"
    yield ""
    if config is None or shown is None:
        yield "  It was not found, so there is nothing to tell."
        return
    yield from story(config, shown)
    yield ""
