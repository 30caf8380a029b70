"""A file server for a folder, on the loopback interface only."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOST = "127.0.0.1"


def server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server that is bound to a port but not started; port 0 selects a free port. Raises OSError."""
    return ThreadingHTTPServer((HOST, port), partial(_Handler, directory=str(folder)))


class _Handler(SimpleHTTPRequestHandler):
    """Serves files without logging, with the content types that browsers require for scripts and WebAssembly."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # reload a rebuilt page
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass
