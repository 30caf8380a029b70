"""Atomic writing of files, and folders that belong to one command."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from tensornet_attn.errors import InputError

MARK = ".tensornet-attn"  # end of the names of files that are being written


def user_folder() -> Path:
    """The folder of this user's caches, as `platformdirs` has it: on Linux `tensornet-attn` in $XDG_CACHE_HOME or
    ~/.cache. Raises InputError if the user has no home."""
    from platformdirs import user_cache_path

    with suppress(RuntimeError):  # some versions raise it, and others return a path in '~'
        folder = user_cache_path("tensornet-attn", False)
        if folder.is_absolute():
            return folder
    raise InputError("there is no folder for caches: set HOME or XDG_CACHE_HOME to an absolute path of your own.")


def check_own(folder: Path, first: str, *marks: str) -> None:
    """Raises InputError unless a folder is new, empty, or has two of the files `first` and `marks` of a command.

    The command makes `first` before any other, so it may be alone if nothing is in it.
    """
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    empty = {first} if names and not _has_content(folder / first) else set()
    others = sorted(name for name in names - empty if not name.endswith(MARK))
    if others and len(names & {first, *marks}) < 2:
        raise InputError(
            f"'{folder}' has files of others, such as '{others[0]}': choose an empty folder, or another --out."
        )


def _has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


def remove_torn(folder: Path) -> None:
    """Removes the files that killed processes have left half written in a folder."""
    for path in folder.glob(f".*{MARK}"):
        if path.is_file():
            path.unlink()


def write_whole(target: Path, data: bytes) -> None:
    """Writes a temporary file in the target's folder, then renames it. Raises OSError with the target's name."""
    handle, temporary = tempfile.mkstemp(MARK, f".{target.name}.", folder_of(target))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def folder_of(target: Path) -> Path:
    """The folder of a file to write. Raises OSError with the path of the user, not with that of the temporary file."""
    if target.is_dir():
        raise IsADirectoryError(21, "is a folder, not a file", str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(2, "the folder to write in does not exist", str(target.parent))
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(13, "the folder is not writable", str(target.parent))
    return target.parent


def _mode(target: Path) -> int:
    """The mode of the replaced file. A new file gets the umask's default, because mkstemp makes private files."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
