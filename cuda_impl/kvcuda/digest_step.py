"""A device manager that computes: every launch runs the digest model, and the oracle checks every sample."""

from collections.abc import Callable
from typing import NamedTuple

from kvcuda.device_manager import DeviceManager
from kvcuda.digest import DigestModel, Sampling, generate, sample, states
from kvcuda.forward import ForwardBatch
from kvcuda.streams import Streams
from kvspec import events
from kvspec.events import A, Config, Operation
from kvspec.tokens import Tokens


class Sampled(NamedTuple):
    """Sampled tokens, and where their values are on the device."""

    launch: int
    req: str
    tokens: Tokens
    """The request's tokens. Append-only, so the samples follow from their first ones."""
    length: int
    """The number of tokens that the first sample follows from."""
    samples: int
    begin: int
    """Index into `DigestModel.samples`."""


class Corruption(NamedTuple):
    """A token that differs from the sample of an uncached computation."""

    launch: int
    req: str
    length: int
    """The tokens that it follows."""
    expected: int
    observed: int


class DigestStep:
    """Carries operations out on a device manager whose launches run the digest model; a `kvspec.events.Step`.

    The tokens of `complete` and `verify` must be the model's own samples (`kvcuda.digest.generate`), as token ids. The
    host never waits for them: it may be many launches ahead of the device, as with overlap scheduling, and then each
    decode step uses the device's own last sample. `corruptions` compares all samples in the end.
    """

    def __init__(
        self,
        make_manager: type[DeviceManager],
        config: Config,
        *,
        streams: Streams | None = None,
        before_forward: Callable[[], object] | None = None,
        max_words: int = 1 << 14,
        max_samples: int = 1 << 16,
    ) -> None:
        """Make a manager. `before_forward` is enqueued before each forward pass, to delay it."""
        self.manager = make_manager(config, forward=self._forward, streams=streams)
        self.model = DigestModel(self.manager.memory, max_words=max_words, max_samples=max_samples)
        self._before_forward = before_forward
        self.sampled: list[Sampled] = []

    def __call__(self, op: Operation[A], /) -> A:
        """Carry an operation out.

        An eviction answers one zero for each page and window page that left the store: only the device knows which.

        Raises:
            Refusal: the manager refused it.
        """
        if isinstance(op, events.Evict):
            pages, window, states = self.manager.evict_pages(op.n, op.window, op.states)
            return events.EvictAnswer([0] * pages, [0] * window, states)  # type: ignore[return-value]
        arguments = [getattr(op, name) for name in op.__struct_fields__ if name not in ("obs", "refused")]
        answer: A = getattr(self.manager, str(op.__struct_config__.tag))(*arguments)
        return answer

    def _forward(self, batch: ForwardBatch) -> None:
        """Enqueue the forward pass of a launch."""
        streams = self.manager.streams
        if self._before_forward is not None:
            streams.forward.run(self._before_forward)
        parts = [self._part(*one) for one in zip(batch.reqs, batch.rows, batch.starts, batch.ends, strict=True)]
        begins = self.model.run(batch, parts)
        for req, end, part, begin in zip(batch.reqs, batch.ends.tolist(), parts, begins, strict=True):
            if part.samples:
                tokens = self.manager.running[req].tokens
                self.sampled.append(Sampled(batch.launch, req, tokens, end - part.samples + 1, part.samples, begin))

    def note_decode(self, batch: ForwardBatch) -> int:
        """Expect one sample of each request of a decode step, in order. Returns the index where they will begin.

        Raises:
            ValueError: `samples` has no room for them.
        """
        model = self.model
        begin = model.num_samples
        if begin + len(batch.reqs) > len(model.samples):
            raise ValueError("there is no room for further samples")
        model.num_samples += len(batch.reqs)
        for number, (req, end) in enumerate(zip(batch.reqs, batch.ends.tolist(), strict=True)):
            self.sampled.append(Sampled(batch.launch, req, self.manager.running[req].tokens, end, 1, begin + number))
        return begin

    def _part(self, req: str, row: int, start: int, end: int) -> Sampling:
        """The work of a launch for one request; its drafts are the model's own samples."""
        run = self.manager.running[req]
        known = len(run.tokens)
        drafts = int(self.manager.rows.drafts[row])
        if not drafts and start >= known:
            return Sampling(None, 1)
        ids = _ids(run.tokens, 0 if end > known else int(start), min(int(end), known))
        if end > known:
            ids = (ids + generate(ids, int(end) - known, self.model.layers))[int(start) :]
        return Sampling(ids, drafts or (0 if run.mid_prefill else 1))

    def corruptions(self) -> list[Corruption]:
        """Every sample that differs from the oracle's. Reads the device."""
        self.manager.memory.flush()
        self.manager.streams.synchronize()
        observed: list[int] = self.model.samples[: self.model.num_samples].tolist()
        by_tokens: dict[int, list[Sampled]] = {}
        for one in self.sampled:
            by_tokens.setdefault(id(one.tokens), []).append(one)
        found = []
        for group in by_tokens.values():
            ids = _ids(group[0].tokens, 0, len(group[0].tokens))
            longest = max(one.length + one.samples - 1 for one in group)
            read = states(ids, max(0, longest - len(ids)), self.model.layers)
            expected = [sample(behind) for behind in read]
            for one in group:
                for i in range(one.samples):
                    due, found_token = expected[one.length + i - 1], observed[one.begin + i]
                    if due != found_token:
                        found.append(Corruption(one.launch, one.req, one.length + i, due, found_token))
        return sorted(found)


def _ids(tokens: Tokens, start: int, end: int) -> list[int]:
    """The token ids of positions `start..end - 1`.

    Raises:
        TypeError: a page has a key instead of token ids.
    """
    size = tokens.page_size
    ids: list[int] = []
    for page in tokens.pages[start // size : -(-end // size)]:
        if isinstance(page, str):
            raise TypeError(f"the digest model computes token ids, not the page key {page!r}")
        ids.extend(page)
    ids.extend(tokens.rest)
    first = start // size * size
    return ids[start - first : end - first]
