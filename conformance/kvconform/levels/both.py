"""The two levels. Vectors of the memory level come first, as they need no implementation."""

from kvconform.levels.level import Level
from kvconform.levels.memory import checking as memory
from kvconform.levels.memory import showing as memory_showing
from kvconform.levels.memory import vectors as memory_vectors
from kvconform.levels.requests import checking as requests
from kvconform.levels.requests import showing as requests_showing
from kvconform.levels.requests import vectors as requests_vectors
from kvconform.traces.codec import read_vector
from kvconform.traces.memory import read_memory_vector

LEVELS = {
    "memory": Level("memory", "event", memory.check, memory_showing.Replay, read_memory_vector, memory_vectors.run),
    "request": Level(
        "request", "operation", requests.check, requests_showing.Replay, read_vector, requests_vectors.run
    ),
}
