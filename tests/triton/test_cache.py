"""Tuned configurations on disk: kept by content and device, and a damaged file is neither trusted nor fatal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tensornet_attn.errors import InputError
from tensornet_attn.nn import tune
from tensornet_attn.runtime.triton import cache, configure
from tests.triton.played import play

ONE = {"linear 64": {"CHUNK": 64, "num_warps": 4, "num_stages": 2}}
OTHER = {"linear 32": {"CHUNK": 32, "num_warps": 4, "num_stages": 1}}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_is_kept_is_recalled(tmp_path: Path) -> None:
    assert cache.recall("a") == {}
    assert cache.keep("a", ONE) == cache.cache_file() == tmp_path / "tensornet-attn" / "kernels.json"
    cache.keep("b", OTHER)
    cache.keep("a", OTHER)
    assert (cache.recall("a"), cache.recall("b"), cache.recall("c")) == (ONE | OTHER, OTHER, {})
    assert [path.name for path in cache.cache_file().parent.iterdir()] == ["kernels.json"]


def test_the_key_has_the_content_and_the_versions() -> None:
    import torch
    import triton

    key = cache.cache_key("text")
    assert key.endswith(f"; {torch.__version__}; {triton.__version__}")
    assert key == cache.cache_key("text") != cache.cache_key("other text")


DAMAGED = [
    "",
    "{",
    "[]",
    '{"a": 1}',
    '{"a": {"linear": 1}}',
    '{"a": {"linear": {}}}',
    '{"a": {"linear": {"CHUNK": "64"}}}',
    '{"a": {"linear": {"CHUNK": -64}}}',
    '{"a": {"linear": {"CHUNK": true}}}',
    '{"a": {"linear": {"CHUNK": 1e9}}}',
    "\udcff",
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_set_aside(text: str) -> None:
    path = cache.cache_file()
    path.parent.mkdir()
    path.write_bytes(text.encode(errors="surrogateescape"))
    words = f"{path} is damaged and has been moved to kernels.damaged: kernels are tuned anew."
    with pytest.warns(UserWarning, match=f"^{re.escape(words)}$"):
        assert cache.recall("a") == {}
    assert path.with_suffix(".damaged").read_bytes() == text.encode(errors="surrogateescape")
    cache.keep("a", ONE)
    assert json.loads(path.read_text()) == {"a": ONE}


def test_a_module_launches_with_what_was_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configure, "CHOICES", {})
    cache.keep(cache.cache_key("text"), ONE)
    tune.recalled("other text")
    assert configure.CHOICES == {}
    tune.recalled("text")
    assert configure.CHOICES == ONE


def test_without_a_gpu_nothing_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError) as error:
        tune.tuned(lambda: None, "text")
    assert str(error.value) == "tune: there is no GPU to time kernels on; leave it out, and the model chooses."


def test_the_fastest_candidate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that is played: the candidate of 32 is fast, that of 128 does not fit."""
    from triton.runtime.errors import OutOfResources

    candidates = [{"CHUNK": size, "num_warps": 4} for size in (128, 64, 32, 16)]
    for name in ("CHOICES", "ASKED"):
        monkeypatch.setattr(configure, name, {})
    now = 0.0
    play(monkeypatch, lambda: now)

    def call() -> None:
        nonlocal now
        configure.ASKED["linear"] = candidates
        size = configure.CHOICES.get("linear", candidates[2])["CHUNK"]
        if size == 128:
            raise OutOfResources(300, 200, "shared memory")
        now += abs(size - 30)

    assert tune.tuned(call, "text") == {"linear": candidates[2]} == configure.CHOICES
    assert cache.recall(cache.cache_key("text")) == {"linear": candidates[2]}
