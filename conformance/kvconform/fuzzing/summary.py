"""What a fuzzing run has met, as a table."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvconform.fuzzing.fuzz import Fuzzed
from kvspec.rules import RULES


def show_fuzz(console: Console, fuzzed: Fuzzed) -> None:
    """Print what a fuzzing run has met."""
    tally = fuzzed.tally
    table = Table("operation", "times", title="Fuzzing", box=box.SIMPLE_HEAD)
    for operation, times in tally.operations.most_common():
        table.add_row(operation, f"{times:,}")
    console.print(table)
    judged = ", ".join(f"{rule} ({tally.judged[rule]:,})" for rule in RULES if tally.judged[rule])
    reached = ", ".join(f"{what} ({count:,})" for what, count in sorted(tally.reached.items()))
    console.print(Text(f"Rules judged: {judged or 'none'}."), soft_wrap=True)
    console.print(Text(f"On the way: {reached or 'nothing worth telling'}."), soft_wrap=True)
    console.print(
        f"{tally.steps:,} operations in {tally.runs:,} runs and {fuzzed.seconds:.1f} s.",
        highlight=False,
        soft_wrap=True,
    )
