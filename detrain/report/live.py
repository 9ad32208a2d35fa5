"""`detrain report --live`: the page of a run that goes on, on this machine's own address, drawn again when there is more to see."""

from __future__ import annotations

import functools
import json
import threading
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from detrain.report import page
from detrain.report.history import read
from detrain.report.now import Watched

HOST = "127.0.0.1"
#: Names under which a browser on this machine, or at the other end of `ssh -L`, asks. A page whose name somebody has pointed here gets
#: no answer.
_OWN_NAMES = frozenset({"localhost", HOST})
#: Looks every two seconds; draws the whole page again when a checkpoint, an attempt or half a minute is new.
_SCRIPT = """
<script>
(() => {
  const seen = {}, began = Date.now();
  async function look() {
    const bar = document.getElementById("now");
    try {
      const now = await (await fetch("now.json")).json();
      bar.textContent = now.text;
      const news = [now.attempt, now.checkpoint, now.state].join();
      const isLater = now.batches !== seen.batches && Date.now() - began > 30000;
      if (seen.news !== undefined && (news !== seen.news || isLater)) location.reload();
      seen.news ??= news; seen.batches ??= now.batches;
    } catch { bar.textContent = "detrain report is not running any more"; }
  }
  addEventListener("DOMContentLoaded", () => { look(); setInterval(look, 2000); });
})();
</script>
<style>#now { position: sticky; top: 0; background: #1f2937; color: #f8fafc; padding: 6px 20px; font-size: 13px; z-index: 9; }</style>
"""


class Server:
    """Serves the page of one run."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        """`port`: 0 for one that is free.

        Raises `UsageError` if `folder` holds no run, `MissingExtra` without plotly, `OSError` for a port that is taken.
        """
        self._folder, self._watched, self._lock = folder, Watched(folder), threading.Lock()
        self._plotly = page.plotly_script()
        read(folder)
        handler = functools.partial(_Handler, self)
        self._server = ThreadingHTTPServer((HOST, port), handler)
        self._server.daemon_threads = True

    @property
    def address(self) -> str:
        """For a browser."""
        return f"http://{HOST}:{self._server.server_port}/"

    def serve(self) -> None:
        """Until `close`, or an exception in this thread."""
        self._server.serve_forever()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Type and content of what lies at a path; None if nothing does."""
        if path == "/plotly.js":
            return "text/javascript", self._plotly.encode()
        with self._lock:  # two tabs look at one tail
            if path == "/now.json":
                now = self._watched.look()
                return "application/json", json.dumps({**asdict(now), "text": now.text()}).encode()
            if path == "/":
                head = '<script src="plotly.js"></script>' + _SCRIPT
                return "text/html; charset=utf-8", page.compose(read(self._folder), head, "<div id=now></div>").encode()
        return None


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, server: Server, *arguments: object) -> None:
        self._server = server
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer."""
        name = self.headers.get("Host", "").rsplit(":", 1)[0]
        found = self._server.answer(self.path.partition("?")[0]) if name in _OWN_NAMES else None
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, content = found
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "max-age=86400" if self.path == "/plotly.js" else "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nobody reads what was asked for."""
