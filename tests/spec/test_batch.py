import pytest

from kvspec.batch import Chunking, broken_rule


@pytest.mark.parametrize(
    ("chunking", "rule"),
    [
        (Chunking(0, 0, 0), None),
        (Chunking(1, 0, 1), None),
        (Chunking(1, 1, 1), None),
        (Chunking(1, 1, 2), "BATCH-2"),
        (Chunking(0, 1, 2), "BATCH-2"),
        (Chunking(2, 0, 0), "BATCH-1"),
        (Chunking(0, 2, 2), "BATCH-1"),
    ],
)
def test_one_continuing_and_one_new_chunk_may_share_a_batch_if_one_is_left(
    chunking: Chunking, rule: str | None
) -> None:
    assert broken_rule(chunking) == rule
