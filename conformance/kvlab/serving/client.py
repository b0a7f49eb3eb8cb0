"""HTTP traffic for one server: shared prompts, interrupted streams, sessions, and control requests."""

import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from kvlab.model import VOCABULARY, Answer
from kvlab.serving.servers import REFUSED, Control, Server, aborting

PATIENCE = 120.0
"""Seconds after which an unanswered request counts as forgotten by the server."""

JSON = {"Content-Type": "application/json"}

GRACE = 10.0
"""Seconds that prefill has for its answer after decode has ended a request early."""

LONGEST_PROMPT = 100
LONGEST_ANSWER = 40
WHOLE, ABORTED = "length", "abort"
"""The reasons for which an answer ends."""

TURNS = 4
"""The most turns of a session."""


@dataclass
class Traffic:
    """The outcomes of the requests of one run."""

    answers: list[Answer] = field(default_factory=list)
    aborted: int = 0
    turns: int = 0
    """The number of turns of sessions."""
    orders: int = 0
    """The number of pauses, flushes and aborts by name that the server accepted."""
    refused: int = 0
    """The number of requests that the server answered with an error."""
    drafts: tuple[int, int] = (0, 0)
    """The number of drafts that were verified for the answers that say so, and of those that were right."""
    failures: list[str] = field(default_factory=list)
    """Requests without an answer, one line each."""


class Clients:
    """Some clients of a server, each in its own thread, for a limited time."""

    def __init__(self, server: Server, port: int, seed: int, clients: int, prefill: int = 0) -> None:
        """The clients share prompts. Their requests follow from the seed, but their timing from the machine.

        `port` is the port of the server that answers, `prefill` that of the server that computes prompts, if they are a
        pair.
        """
        self._server, self._port, self._prefill = server, port, prefill
        rng = random.Random(f"{seed} prompts")
        self._stems = [[rng.randrange(VOCABULARY) for _ in range(LONGEST_PROMPT)] for _ in range(6)]
        self._rngs = [random.Random(f"{seed} client {client}") for client in range(clients)]
        self._orders = random.Random(f"{seed} orders")
        self._lock = threading.Lock()
        self._live: dict[str, None] = {}
        self._ends, self._least = 0.0, 0
        self._rooms = count(1)
        """The numbers by which a pair knows its requests."""
        self.traffic = Traffic()

    def run(self, seconds: float, least: int = 0) -> Traffic:
        """Send requests for so many seconds, and until there are `least` whole answers; then wait for the last ones."""
        self._ends, self._least = time.monotonic() + seconds, least
        threads = [threading.Thread(target=self._client, args=(number, rng)) for number, rng in enumerate(self._rngs)]
        threads.append(threading.Thread(target=self._order))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.traffic

    @property
    def _over(self) -> bool:
        if self.traffic.failures:
            return True
        return time.monotonic() >= self._ends and len(self.traffic.answers) - self.traffic.aborted >= self._least

    def _client(self, number: int, rng: random.Random) -> None:
        asked = 0
        while not self._over:
            asked += 1
            rid = f"c{number}-{asked}."
            try:
                if number < self._server.sessions and rng.random() < 0.5:
                    self._talk(rng, rid)
                else:
                    self._ask(rng, rid, self._prompt(rng))
            except (OSError, http.client.HTTPException, TimeoutError) as error:
                with self._lock:
                    self.traffic.failures.append(f"{rid}: {type(error).__name__}: {error}")

    def _prompt(self, rng: random.Random) -> list[int]:
        """A prompt that begins as others do. SGLang takes drafts from other answers: half its prompts are repeated."""
        if self._server.engine == "sglang" and self._server.drafter and rng.random() < 0.5:
            return rng.choice(self._stems)[: LONGEST_PROMPT // 2]
        stem = rng.choice(self._stems)[: rng.randint(0, LONGEST_PROMPT)]
        return stem + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20))]

    def _talk(self, rng: random.Random, name: str) -> None:
        """A streaming session of some turns. The answer of a turn comes before the next turn's tokens.

        After a turn that is aborted or refused the session goes on as if there had been none.
        """
        opened, closed = self._server.session(name)
        if self._post(*opened)[0] >= 400:
            return
        known: list[int] = []
        for turn in range(rng.randint(1, TURNS)):
            with self._lock:
                self.traffic.turns += 1
            said = self._prompt(rng)[: LONGEST_PROMPT // TURNS]
            answer, ended = self._ask(rng, f"{name}{turn}.", said, session=name, before=known)
            if ended == WHOLE:
                known = answer.prompt + answer.output
            elif ended not in (ABORTED, REFUSED):
                break
        self._post(*closed)

    def _ask(
        self, rng: random.Random, rid: str, tokens: list[int], session: str = "", before: list[int] | None = None
    ) -> tuple[Answer, str | None]:
        """Send one request. Returns its answer, and why that ends; `None`: the client has hung up, or has an error."""
        asked = rng.randint(1, LONGEST_ANSWER)
        cut = rng.randint(1, asked) if rng.random() < 0.15 else None
        path, body = self._server.ask(rid, tokens, asked, session)
        answer = Answer(rid, (before or []) + tokens, [], asked)
        with self._lock:
            self._live[rid] = None
        try:
            if self._server.bootstrap:
                ended = self._meet(path, body, answer, cut)
            else:
                if self._server.pair:
                    body["kv_transfer_params"] = self._prefilled(path, self._server.prefill(body))
                ended = self._stream(path, body, answer, cut, session)
        finally:
            with self._lock:
                self._live.pop(rid, None)
        with self._lock:
            self.traffic.answers.append(answer)
            if ended != WHOLE:
                self.traffic.aborted += 1
                answer.asked = 0
        return answer, ended

    def _stream(
        self, path: str, body: dict[str, Any], answer: Answer, cut: int | None, session: str = ""
    ) -> str | None:
        """Fill in an answer as it arrives. Returns why it ends; `None` without a reason of the server.

        After `cut` tokens the client disconnects, or aborts the request by its name if it is a turn of a session.
        """
        with closing(_connection(self._port)) as connection:
            connection.request("POST", path, json.dumps(body), JSON)
            response = connection.getresponse()
            if response.status >= 400:
                response.read()
                with self._lock:
                    self.traffic.refused += 1
                return None
            reason = None
            for message in _messages(response):
                if "error" in message:
                    with self._lock:
                        self.traffic.failures.append(f"{answer.rid}: {message['error']}")
                    return None
                tokens, reason = self._server.answered(message)
                if reason == ABORTED and self._server.cumulative:
                    # SGLang answers to an abort in its queue with the last token alone. Messages before have all.
                    return reason
                answer.output = tokens if self._server.cumulative else answer.output + tokens
                if reason is not None and self._server.engine == "sglang":
                    self._count(*self._server.drafted(message["meta_info"]))
                if reason == REFUSED:
                    with self._lock:
                        self.traffic.refused += 1
                if cut is not None and len(answer.output) >= cut:
                    if not session:
                        return None
                    for order in aborting(answer.rid):
                        self._post(*order)
                    cut = None
            return reason

    def _count(self, drafts: int, right: int) -> None:
        with self._lock:
            verified, so_far = self.traffic.drafts
            self.traffic.drafts = verified + drafts, so_far + right

    def _meet(self, path: str, body: dict[str, Any], answer: Answer, cut: int | None) -> str | None:
        """Send one request to both servers of SGLang's pair at once, as its router does, and listen to decode.

        Decode may end it before the two have met; then prefill waits for it, until the client disconnects.
        """
        body |= self._server.meeting(next(self._rooms))
        with ThreadPoolExecutor(1) as beside, closing(_connection(self._prefill)) as prefill:
            prefill.connect()
            line = prefill.sock  # the connection gives it up with the first line of an answer
            computed = beside.submit(_asked, prefill, path, {**body, "stream": False})
            ended = self._stream(path, body, answer, cut)
            if ended == WHOLE or wait([computed], GRACE).done:
                computed.result()
            else:
                line.shutdown(socket.SHUT_RDWR)
        return ended

    def _order(self) -> None:
        """Now and then send control requests: pause and continue, flush, abort a request by its name."""
        rng = self._orders
        while not self._over:
            time.sleep(rng.uniform(0.2, 1.5))
            with self._lock:
                among = list(self._live)
            if not among or not self._server.controls:
                continue
            control: Control = rng.choice(self._server.controls)
            try:
                for path, body in control(rng.choice(among)):
                    taken = self._post(path, body)[0] < 400
                    with self._lock:
                        self.traffic.orders += taken
                    time.sleep(rng.uniform(0.0, 0.3))
            except (OSError, http.client.HTTPException) as error:
                with self._lock:
                    self.traffic.failures.append(f"order: {type(error).__name__}: {error}")

    def _prefilled(self, path: str, body: dict[str, Any]) -> Any:
        """The parameters with which decode finds the KV that prefill has computed."""
        status, answer = self._post(path, body, self._prefill)
        if status >= 400:
            raise http.client.HTTPException(f"prefill answers {status}: {answer.decode(errors='replace')[:200]}")
        return json.loads(answer)["kv_transfer_params"]

    def _post(self, path: str, body: dict[str, Any], port: int = 0) -> tuple[int, bytes]:
        """The status and the text of a server's answer; by default of the server that answers requests."""
        with closing(_connection(port or self._port)) as connection:
            return _asked(connection, path, body)


def _connection(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)


def _asked(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """The status and the text of an answer."""
    connection.request("POST", path, json.dumps(body), JSON)
    response = connection.getresponse()
    return response.status, response.read()


def _messages(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The messages of an event stream."""
    for line in response:
        if line.startswith(b"data: {"):
            yield json.loads(line[len(b"data: ") :])
