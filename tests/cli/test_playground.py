"""The command `playground` serves a built page to this machine, and says what is missing."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tensornet_attn.cli import playground
from tests.cli.conftest import Run


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text("<p>the page</p>")
    (tmp_path / "a.mjs").write_text("export {}")
    return tmp_path


def test_the_page_is_served_until_interrupted(page: Path) -> None:
    # A shell that starts jobs in the background has them ignore interrupts, and so what they start.
    heard = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    start = f"{heard}from tensornet_attn.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", start, "playground", "--no-browser", "--port", "0"]
    with subprocess.Popen([*command, "--folder", str(page)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("the playground is at http://127.0.0.1:")
        address = line.split()[4].rstrip(";")
        with urlopen(address) as answer:
            assert answer.read() == b"<p>the page</p>"
        with urlopen(f"{address}a.mjs") as answer:
            assert answer.headers["Content-Type"] == "text/javascript"
        process.send_signal(2)
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_it_opens_a_browser(page: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def interrupt(address: str) -> None:
        opened.append(address)
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", interrupt)
    assert run("playground", "--folder", str(page), "--port", "0").out.count(opened[0]) == 1


def test_without_a_page_it_says_how_to_build_one(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playground, "BUILT", tmp_path / "none")
    found = run("playground", "--no-browser")
    assert found.code == 3
    assert found.err == (
        f"error: '{tmp_path / 'none'}' contains no playground; run 'make playground' in a clone of the project, which "
        "needs Node.js, or give the folder of a built page with --folder.\n"
    )


def test_a_port_that_is_taken(page: Path, run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = run("playground", "--no-browser", "--folder", str(page), "--port", str(port))
    assert found.code == 2
    assert f"port {port} is in use; use --port 0 for a free port." in found.err
