"""C++ kernels by other compilers, and for processors with narrower vectors: the results of the reference."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import tensornet_attn as ta
from tensornet_attn.runtime import cpp
from tests.tiles.test_cpp import check, compared, needs_compiler
from tests.tiles.test_running import OF_MAPS

LEGS = {"f": 32, "h": 8, "g": 4, "d": 32}
WAYS = [
    ("", "-march=x86-64-v2"),  # without AVX
    ("", "-march=x86-64-v3"),  # without AVX-512
    ("", "-fno-openmp -fopenmp-simd"),  # one thread
    ("clang++", ""),
]


@pytest.fixture
def _compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    own, flags = request.param
    if own and shutil.which(own) is None:
        pytest.skip(f"there is no {own}")
    if "x86" in flags and os.uname().machine != "x86_64":
        pytest.skip("the flags are those of x86")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(cpp.CPP_MORE, flags)
    if own:
        monkeypatch.setenv("CXX", own)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("_compiler", WAYS, indirect=True, ids=[" ".join(way).strip() for way in WAYS])
@pytest.mark.usefixtures("_compiler")
def test_results_are_those_of_the_reference() -> None:
    check(*compared(OF_MAPS), 12)
    check(*compared(ta.load("hard_fish", legs=LEGS)), 32)


def test_flags_of_the_environment_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = cpp.cpp_flags()
    monkeypatch.setenv(cpp.CPP_MORE, "-march=x86-64-v3 -DNAME='a b'")
    assert cpp.cpp_flags() == [*plain, "-march=x86-64-v3", "-DNAME=a b"]


def test_flags_that_cannot_be_read_are_a_reason_against_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cpp.CPP_MORE, "-DNAME='a")
    assert cpp.reason_against_cpp() == "the flags in TENSORNET_ATTN_CXXFLAGS cannot be read: No closing quotation"
    ta.compile(ta.load("hard_fish", legs=LEGS))  # by torch
    with pytest.warns(UserWarning, match="cannot be read: No closing quotation. Using 'torch' instead."):
        ta.compile(ta.load("hard_fish", legs=LEGS), "cpp")


def test_another_compiler_and_other_flags_have_libraries_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    keys = [cpp.cpp_key("text", "float32")]
    for name, value in (("CXX", "clang++"), (cpp.CPP_MORE, "-O2")):
        monkeypatch.setenv(name, value)
        keys.append(cpp.cpp_key("text", "float32"))
    assert len({*keys}) == 3
