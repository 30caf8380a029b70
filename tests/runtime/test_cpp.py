"""The cache of C++ libraries: compiled once, by content; damaged ones are rebuilt; compilers that fail."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import stat
import sys
import warnings
from pathlib import Path

import pytest

import tensornet_attn as ta
from tensornet_attn.cli.doctor import examine
from tensornet_attn.cost.rates import remember, shipped
from tensornet_attn.runtime import cpp
from tests.refusals import refusal


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpp, "CPP_LOADED", {})
    monkeypatch.setitem(cpp.CPP_FINDERS, "package", lambda text, dtype: cpp.cpp_built(text, dtype, lambda *_: ""))


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


def test_a_file_alone_has_the_folder_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", " ")  # no path
    folder = cpp.cpp_folder()
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert cpp.cpp_folder() == folder


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
    with pytest.warns(UserWarning, match=r"torch computes instead: .*failed\.cpp: k\.cpp:3:1: error: no such thing"):
        cpp.cpp_library("wrong", "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cpp.cpp_library("wrong", "float32") is None
    assert [path.read_text() for path in cpp.cpp_folder().glob("*.failed.cpp")] == ["wrong"]


def test_without_a_compiler_the_reason_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert cpp.reason_against_cpp() == "there is no C++ compiler: install g++, or name a compiler in CXX"
    with pytest.raises(OSError, match="install g"):
        cpp.cpp_compiled("a", "float32")


def test_a_library_that_cannot_be_loaded_is_rebuilt() -> None:
    """Another system has made it: its content is what its name says, but it does not load here."""
    text = 'extern "C" int answer() { return 42; }'
    library = cpp.cpp_compiled(text, "float32")
    data = b"made elsewhere"
    other = library.with_name(f"{cpp.cpp_key(text, 'float32')}-{hashlib.sha256(data).hexdigest()[:16]}.so")
    library.unlink()
    other.write_bytes(data)
    loaded = cpp.cpp_library(text, "float32")
    assert loaded is not None
    assert loaded.answer() == 42
    assert [*cpp.cpp_folder().glob("*.so")] == [library]


def test_the_folder_is_private_and_another_one_is_refused(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cpp.cpp_compiled("a", "float32")
    folder = made.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for mode in (0o770, 0o702):
        folder.chmod(mode)
        reason = f"other users can write to the folder {folder}: delete it, or make it private with 'chmod 700'"
        assert (cpp.reason_against_cpp(), cpp.cpp_stored("a", "float32")) == (reason, None)
        with pytest.raises(OSError, match="other users can write"):
            cpp.cpp_compiled("b", "float32")
        assert f"not cpp: {reason}" in ta.explain("hard_fish")
        assert f"not compiled: {reason}" in examine()["optional parts"]["C++ kernels"]
    folder.chmod(0o755)
    assert cpp.cpp_stored("a", "float32") == made
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    reason = f"the folder {folder} belongs to another user: set XDG_CACHE_HOME to a folder of your own"
    assert (cpp.reason_against_cpp(), cpp.cpp_stored("a", "float32")) == (reason, None)
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert ta.compile("hard_fish", "cpp").plan.backend == "torch"
    assert copied.read_text() == "x\n"


@pytest.mark.parametrize("cache", [None, "relative"])
def test_without_a_home_torch_computes(cache: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name, value in (("HOME", None), ("XDG_CACHE_HOME", cache)):
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    with pytest.warns(
        UserWarning, match="no folder for compiled kernels: set HOME or XDG_CACHE_HOME to an absolute path"
    ):
        assert ta.compile("hard_fish", "cpp").plan.backend == "torch"
    assert ta.compile("hard_fish").plan.backend == "torch"
    assert "backend torch" in ta.explain("hard_fish")
    assert "set HOME or XDG_CACHE_HOME" in examine()["optional parts"]["C++ kernels"]
    if cache is None:
        assert refusal(remember, shipped()).startswith("there is no folder for caches: set HOME or XDG_CACHE_HOME")


def test_the_least_recently_used_libraries_are_removed(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (cpp.cpp_compiled(text * 100, "float32") for text in "ab")
    os.utime(first, (2, 2))
    os.utime(second, (1, 1))
    monkeypatch.setattr(cpp, "CPP_LIMIT", 250)
    killed = cpp.cpp_folder() / "tmp0" / "kernels.so"  # of a process that was killed while it compiled
    killed.parent.mkdir()
    killed.write_text("d" * 300)
    os.utime(killed, (0, 0))
    third = cpp.cpp_compiled("c" * 100, "float32")
    assert {path for path in cpp.cpp_folder().rglob("*") if path.is_file()} == {first, third}
    assert copied.read_text() == 3 * "x\n"


def test_the_record_of_a_library_that_is_used_is_kept_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'extern "C" int answer() { return 42; }'
    library = cpp.cpp_compiled(text, "float32")
    record = library.with_suffix(".json")
    record.write_text("{}")
    for path in (library, record):
        os.utime(path, (1, 1))
    assert cpp.cpp_library(text, "float32") is not None
    assert min(library.stat().st_mtime, record.stat().st_mtime) > 1

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refused)
    cpp.CPP_LOADED.clear()
    assert cpp.cpp_library(text, "float32") is not None
    assert library.exists()


def test_a_compiler_with_arguments_and_one_that_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env g++ -DNAME='a b'")
    assert cpp.cpp_compiler() == [shutil.which("env"), "g++", "-DNAME=a b"]
    assert cpp.cpp_compiled('extern "C" int answer() { return 42; }', "float32").exists()
    for name, reason in (
        (
            "nosuch -m64",
            "'nosuch -m64', which CXX names, is not on the PATH: install g++, or name a compiler in CXX",
        ),
        ("g++ 'x", "the compiler in CXX cannot be read: No closing quotation"),
    ):
        monkeypatch.setenv("CXX", name)
        assert cpp.reason_against_cpp() == reason
        with pytest.warns(UserWarning, match=re.escape(reason)):
            assert ta.compile("hard_fish", "cpp").plan.backend == "torch"


def test_a_compiler_that_does_not_write_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(tmp_path, monkeypatch, r"printf 'error: caf\351\n' >&2; exit 1")
    with pytest.warns(UserWarning, match="failed.cpp: error: caf\ufffd"):
        assert cpp.cpp_library("a", "float32") is None


def test_other_versions_of_torch_and_of_the_compiler_have_libraries_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = set()
    for version in ("12.2", "13.1"):
        compiler(tmp_path, monkeypatch, f"echo g++ {version}; echo and more")
        for function in (cpp.cpp_version, cpp.cpp_hash):
            function.cache_clear()
        keys.add(cpp.cpp_key("a", "float32"))
        assert cpp.cpp_version(*cpp.cpp_compiler()) == f"g++ {version}"
    monkeypatch.setattr(cpp, "cpp_torch", lambda: "torch 3")
    cpp.cpp_hash.cache_clear()
    assert len(keys | {cpp.cpp_key("a", "float32")}) == 3
    cpp.cpp_hash.cache_clear()
