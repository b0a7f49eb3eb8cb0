"""An HTTP server around transformers' continuous batching, with requests and answers in SGLang's shape.

    python -m kvlab.serving.batching --model MODEL --port PORT --page-size 4 --num-blocks 60 ...

transformers has no server that takes token ids. The manager of continuous batching and its thread are its own.
"""

import argparse
import importlib
import json
import queue
import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAUSE = 0.05
"""Seconds that the generation loop is paused."""


class Front:
    """The requests that wait for a manager's output."""

    def __init__(self, manager: Any) -> None:
        """Begin without waiting requests."""
        self.manager = manager
        self._waiting: dict[str, queue.Queue[dict[str, Any]]] = {}

    def ask(self, body: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
        """Add a request and send its messages until it ends. A disconnected client cancels it."""
        rid = body["rid"]
        messages = self._waiting[rid] = queue.Queue()
        try:
            self.manager.add_request(
                body["input_ids"], rid, body["sampling_params"]["max_new_tokens"], streaming=True, eos_token_id=-1
            )
            while True:
                message = messages.get()
                send(message)
                if "error" in message or message["meta_info"]["finish_reason"] is not None:
                    return
        except OSError:
            self.manager.cancel_request(rid)
        finally:
            del self._waiting[rid]

    def abort(self, rid: str) -> None:
        """Cancel a request. The manager sends no further messages for it, so its client gets one here."""
        self.manager.cancel_request(rid)
        self._put(rid, {"meta_info": {"finish_reason": {"type": "abort"}}})

    def pause(self) -> None:
        """Pause the generation loop for a moment."""
        with self.manager.pause():
            threading.Event().wait(PAUSE)

    def route(self) -> None:
        """Pass each output to its client, as long as the manager's thread lives."""
        for output in self.manager:
            if output.error is not None:
                self._put(output.request_id, {"error": output.error})
                continue
            reason = {"type": "length"} if output.is_finished() else None
            message = {"output_ids": output.generated_tokens, "meta_info": {"finish_reason": reason}}
            self._put(output.request_id, message)

    def _put(self, rid: str, message: dict[str, Any]) -> None:
        waiting = self._waiting.get(rid)
        if waiting is not None:
            waiting.put(message)


def handler(front: Front) -> type[BaseHTTPRequestHandler]:
    """The class that answers the requests of a server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            if self.path == "/generate":
                front.ask(body, self._send)
            elif self.path == "/abort_request":
                front.abort(body["rid"])
            else:
                front.pause()

        def _send(self, message: dict[str, Any]) -> None:
            self.wfile.write(b"data: " + json.dumps(message).encode() + b"\n\n")

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler


def main() -> int:
    """Serve until a signal to end. If the manager's thread ends first, the status is 1."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    for name in ("page-size", "num-blocks", "max-batch-tokens", "max-requests-per-batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--scheduler-type", required=True)
    parser.add_argument("--safety-margin", type=float, required=True)
    parser.add_argument("--no-block-sharing", dest="allow_block_sharing", action="store_false")
    options = vars(parser.parse_args())
    transformers = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(options.pop("model"), dtype="float32")
    port = options.pop("port")
    configured = {
        "generation_config": transformers.GenerationConfig(do_sample=False, eos_token_id=-1),
        "continuous_batching_config": transformers.ContinuousBatchingConfig(**options),
    }
    with model.continuous_batching_context_manager(**configured) as manager:
        front = Front(manager)
        with ThreadingHTTPServer(("127.0.0.1", port), handler(front)) as server:
            server.daemon_threads, server.block_on_close = True, False

            def end(*_: object) -> None:
                threading.Thread(target=server.shutdown).start()

            def route() -> None:
                front.route()
                end()

            signal.signal(signal.SIGTERM, end)
            threading.Thread(target=route, daemon=True).start()
            server.serve_forever()
        died = manager.background_thread_status.fatal_error
    if died is not None:
        print(f"the manager's thread has ended: {type(died).__name__}: {died}", flush=True)
    return int(died is not None)


if __name__ == "__main__":
    raise SystemExit(main())
