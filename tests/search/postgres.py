"""A PostgreSQL server of a test's own: a socket in a folder, no network; gone when the test is."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PLACES = "/usr/lib/postgresql/*/bin"
USER = "nobody"  # PostgreSQL refuses to run as root


def missing() -> str | None:
    """Why no server can be started here; None where one can."""
    if program("initdb") is None or program("pg_ctl") is None:
        return "PostgreSQL's initdb and pg_ctl are not installed"
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        return "PostgreSQL does not run as root, and there is no runuser"
    return None


def program(name: str) -> str | None:
    found = sorted(Path("/").glob(f"{PLACES[1:]}/{name}"))
    return str(found[-1]) if found else shutil.which(name)


@contextmanager
def server() -> Iterator[str]:
    """The URL of a fresh database."""
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as name:  # the path of a socket has 107 bytes at most
        folder = Path(name)
        folder.chmod(0o777)
        data = str(folder / "data")
        _run("initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync", cwd=folder)
        options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
        _run("pg_ctl", "-D", data, "-o", options, "-l", str(folder / "log"), "-w", "start", cwd=folder)
        try:
            yield f"postgresql://tester@/postgres?host={folder}"
        finally:
            _run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop", cwd=folder)


def _run(name: str, *arguments: str, cwd: Path) -> None:
    line = [str(program(name)), *arguments]
    if os.geteuid() == 0:
        line = ["runuser", "-u", USER, "--", *line]
    with (cwd / "output").open("ab") as output:  # not a pipe: the server would hold it open
        done = subprocess.run(line, cwd=cwd, stdout=output, stderr=output, check=False)
    assert done.returncode == 0, (cwd / "output").read_text()
