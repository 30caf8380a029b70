"""The cache of C++ libraries: compiled once, by content; damaged ones are rebuilt; compilers that fail."""

from __future__ import annotations

import stat
import warnings
from pathlib import Path

import pytest

from tensornet_attn.runtime import cpp


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpp, "CPP_LOADED", {})


def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(path))


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes its source as the library, and counts its calls."""
    count = tmp_path / "count"
    loop = 'while [ $# -gt 0 ]; do case "$1" in *.cpp) source="$1";; -o) shift; target="$1";; esac; shift; done'
    asked = '[ "$1" = --version ] && exit'
    compiler(tmp_path, monkeypatch, f'{asked}; echo x >> {count}; {loop}; cp "$source" "$target"')
    return count


def test_a_text_is_compiled_once_for_each_dtype(copied: Path) -> None:
    assert cpp.cpp_stored("a", "float32") is None
    made = cpp.cpp_compiled("a", "float32")
    assert made.read_text() == "a"
    assert cpp.cpp_stored("a", "float32") == made
    assert cpp.cpp_stored("a", "float64") is None
    assert cpp.cpp_stored("b", "float32") is None
    assert copied.read_text() == "x\n"


def test_a_damaged_library_is_removed_and_rebuilt(copied: Path) -> None:
    made = cpp.cpp_compiled("a", "float32")
    made.write_text("half")
    assert cpp.cpp_stored("a", "float32") is None
    assert not made.exists()
    assert cpp.cpp_compiled("a", "float32").read_text() == "a"


def test_nothing_is_left_of_a_compiler_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(tmp_path, monkeypatch, "kill -9 $$")
    with pytest.raises(OSError, match="exit status -9"):
        cpp.cpp_compiled("a", "float32")
    assert [path.name for path in cpp.cpp_folder().iterdir()] == [f"{cpp.cpp_key('a', 'float32')}.failed.cpp"]


def test_a_failure_gives_the_first_error_keeps_the_source_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(tmp_path, monkeypatch, 'echo "note: x" >&2; echo "k.cpp:3:1: error: no such thing" >&2; exit 1')
    with pytest.warns(UserWarning, match=r"blockwise path runs: .*failed\.cpp: k\.cpp:3:1: error: no such thing"):
        cpp.cpp_library("wrong", "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cpp.cpp_library("wrong", "float32") is None
    assert [path.read_text() for path in cpp.cpp_folder().glob("*.failed.cpp")] == ["wrong"]


def test_without_a_compiler_the_reason_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert cpp.reason_against_cpp() == "there is no C++ compiler: install g++, or name one in CXX"
    with pytest.raises(OSError, match="install g"):
        cpp.cpp_compiled("a", "float32")
