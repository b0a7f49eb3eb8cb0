"""How long a reader of `req_to_token` holds the engine's thread up: one gather a step, or one read a request.

    python -m benchmarks.row_reads

`gather` uploads the indices of one entry a request, gathers them, copies them to pinned memory and records an event on
the engine's stream: it waits for nothing. `read` calls `.tolist()` for each request, which waits for the device.
Prints a table in Markdown, in microseconds, with the stream idle and behind a kernel that sleeps. Needs a GPU.
"""

import statistics
import time
from collections.abc import Callable

import torch

ROWS, WIDTH = 4096, 8192
CYCLES = 2_000_000
"""How long the device sleeps: a millisecond and more."""


def median(work: Callable[[], object], busy: bool, repeat: int) -> float:
    """The median time, in microseconds, that a piece of work takes the calling thread."""
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        if busy:
            torch.cuda._sleep(CYCLES)
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    table = torch.randint(0, 1 << 20, (ROWS, WIDTH), dtype=torch.int32, device="cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("| requests | gather | behind a busy stream | read | behind a busy stream |\n| --- | --- | --- | --- | --- |")
    for requests in (1, 64, 256, 1024):
        rows, columns = torch.randint(0, ROWS, (requests,)), torch.randint(0, WIDTH, (requests,))
        entries = list(zip(rows.tolist(), columns.tolist(), strict=True))
        pinned = torch.empty(requests, dtype=torch.int32, pin_memory=True)

        def gather(rows: torch.Tensor = rows, columns: torch.Tensor = columns, into: torch.Tensor = pinned) -> None:
            where = torch.stack((rows, columns)).pin_memory().to("cuda", non_blocking=True)
            into.copy_(table[where[0], where[1]], non_blocking=True)
            torch.cuda.Event().record()

        def read(entries: list[tuple[int, int]] = entries) -> None:
            for row, column in entries:
                table[row, column : column + 1].tolist()

        ways: list[tuple[Callable[[], object], int]] = [(gather, 200), (read, 20)]
        times = [median(way, busy, repeat) for way, repeat in ways for busy in (False, True)]
        print(f"| {requests:,} | {' | '.join(f'{one:,.0f}' for one in times)} |")


if __name__ == "__main__":
    main()
