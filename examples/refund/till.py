"""A till to try it with: knows two orders, pays each idempotency key once, and writes down whatever it is asked.

python till.py PORT LOG
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

TOKEN = "Bearer let-me-in"
ORDERS = {"A-17": {"customer": "ada", "euros": 40}, "B-2": {"customer": "bob", "euros": 2500}}


class Till(BaseHTTPRequestHandler):
    """GET /orders/NUMBER, POST /refunds."""

    paid: ClassVar[dict[str, Any]] = {}
    log = Path("till.log")

    def do_GET(self) -> None:
        order = ORDERS.get(self.path.removeprefix("/orders/"))
        self._answer(200 if order else 404, order or {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        new = key not in self.paid
        with self.log.open("a") as log:
            log.write(json.dumps({"key": key, "paid": new, **asked}) + "\n")
        self.paid.setdefault(key, {"order": asked["order"], "paid_euros": asked["amount"]})
        self._answer(200, self.paid[key])

    def _answer(self, status: int, content: Any) -> None:
        data = json.dumps(content if self.headers.get("Authorization") == TOKEN else {}).encode()
        self.send_response(status if self.headers.get("Authorization") == TOKEN else 401)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    Till.log = Path(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Till)
    print(f"till at http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
