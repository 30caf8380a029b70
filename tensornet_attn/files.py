"""Atomic writing of files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(target: Path, data: bytes) -> None:
    """Writes a temporary file in the target's folder, then renames it. Raises OSError with the target's name."""
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=_folder(target))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _folder(target: Path) -> Path:
    """The target's folder. Raises OSError with the path that the user gave, not with that of the temporary file."""
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
