"""A server of a folder of files for this machine alone."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOST = "127.0.0.1"


def server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of a folder that is bound and does not run yet; port 0 is any free one. Raises OSError."""
    return ThreadingHTTPServer((HOST, port), partial(_Handler, directory=str(folder)))


class _Handler(SimpleHTTPRequestHandler):
    """Files with the types that browsers ask of scripts and WebAssembly; it logs nothing."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # a page that is built again is seen at once
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass
