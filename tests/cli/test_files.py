"""draw, compile and schema: the right bytes, whole or not at all."""

from __future__ import annotations

import ast
import json
import os
import stat
from pathlib import Path

import jsonschema
import pytest

from tensornet_attn.cli import output
from tensornet_attn.spec import library
from tensornet_attn.spec.yaml import parse

STARTS = {"svg": b"<svg ", "png": b"\x89PNG", "dot": b"", "mmd": b"", "txt": b""}


@pytest.mark.parametrize("suffix", STARTS)
def test_draw_by_the_ending(run, tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / f"mhsa.{suffix}"
    assert run("draw", "mhsa", "-o", str(picture)) == (0, "", "")
    assert picture.read_bytes().startswith(STARTS[suffix])
    assert [path.name for path in tmp_path.iterdir()] == [picture.name]


def test_draw_to_standard_output(run) -> None:
    assert "softmax" in run("draw", "mhsa").out
    assert run("draw", "mhsa", "--format", "svg").out.startswith("<svg ")


def test_draw_marks_what_a_cache_keeps(run) -> None:
    assert run("draw", "mla", "--causal", "--cache").out.splitlines()[-1] == "cache: C (cached: all positions)"
    assert run("draw", "mla", "--causal").out.splitlines()[-1] == "output y; causal"
    refused = run("draw", "mla", "--cache")
    assert refused.code == 1
    assert "no cache can be kept: in 'A' a query sees later keys; compile it with causal=True." in refused.err


def test_draw_refuses_unknown_formats_as_usage(run, tmp_path: Path) -> None:
    for arguments in (["-o", str(tmp_path / "a.gif")], ["-o", str(tmp_path / "a")], ["--format", "gif"]):
        outcome = run("draw", "mhsa", *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert "one of svg, png, dot, tex, mmd, txt." in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_compile_writes_a_module_of_python(run, tmp_path: Path) -> None:
    target = tmp_path / "mhsa.py"
    assert run("compile", "mhsa", "-o", str(target)) == (0, "", "")
    text = target.read_text()
    ast.parse(text)
    assert run("compile", "mhsa", "-o", "-").out == text
    assert "tensornet_attn.runtime" not in text
    assert "from tensornet_attn.runtime.softmax import attend\n" in run("compile", "mhsa", "--package").out
    assert run("compile", "mhsa", "--causal").out != text
    assert "blockwise" not in run("compile", "talking_heads", "--workload", "decoding").out
    assert run("compile", "mhsa", "--memory", "1MiB").code == 1
    assert "@triton.jit" in run("compile", "mhsa", "--backend", "triton").out
    refused = run("compile", "mhsa", "--backend", "reference")
    assert refused.code == 1
    assert "backend 'reference' evaluates the diagram and has no source; use 'torch' or 'triton'." in refused.err


def test_a_bad_design_writes_nothing(run, tmp_path: Path) -> None:
    target = tmp_path / "a.py"
    target.write_text("before")
    for command in ("compile", "draw"):
        outcome = run(
            command, "-", "-o", str(target.with_suffix({"compile": ".py", "draw": ".svg"}[command])), stdin=b"a: b"
        )
        assert outcome.code == 1
        assert outcome.err.startswith("error: the design is refused: ")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.py", "before")]


def test_schema_accepts_every_shipped_design(run) -> None:
    schema = json.loads(run("schema").out)
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    checker = kind(schema)
    for name in library.names():
        document, _ = parse(library.path_of(name).read_text(), name)
        checker.validate(document.data)


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "a.py"
    output.write(str(target), "one")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask
    target.chmod(0o640)
    output.write(str(target), b"two")
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("two", 0o640)


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.py"
    target.write_text("before")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        output.write(str(target), "after")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.py", "before")]


def test_where_nothing_can_be_written(run, tmp_path: Path) -> None:
    assert run("schema", "-o", str(tmp_path)) == (1, "", f"error: '{tmp_path}': is a folder, not a file.\n")
    nowhere = tmp_path / "no" / "a.json"
    message = f"error: '{nowhere.parent}': the folder to write in does not exist.\n"
    assert run("schema", "-o", str(nowhere)) == (1, "", message)
