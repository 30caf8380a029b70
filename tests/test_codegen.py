"""What is generated and committed is fresh, says readably where it is not, and has no strays."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.generate.__main__ import main
from docs.generate.catalogue import Catalogue
from docs.generate.files import PARTS, ROOT, stale
from tensornet_attn.spec import library

SOME = ("baselines/mhsa", "baselines/mlp", "baselines/cross")  # cross extends mhsa


def _alone(text: str) -> str:
    """A design's text without comments and special cases, which name designs that this library lacks."""
    lines = text.partition("\ncontains:")[0].splitlines()
    return "".join(f"{line}\n" for line in lines if not line.startswith("#"))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three designs and all that is generated from them, which may be changed."""
    for name in SOME:
        (tmp_path / f"specs/{name}").parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / f"specs/{name}.yaml").read_text(encoding="utf-8")
        (tmp_path / f"specs/{name}.yaml").write_text(_alone(text), encoding="utf-8")
    monkeypatch.setattr(library, "folder", lambda: tmp_path / "specs")
    for makers in PARTS.values():
        for path, text in (item for make in makers for item in make(Catalogue())):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def edit(checkout: Path) -> Callable[[str, str], dict[str, str]]:
    """Replaces a text in mhsa.yaml and returns what is stale then, by file."""

    def change(old: str, new: str) -> dict[str, str]:
        path = checkout / "specs/baselines/mhsa.yaml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        return {found.removeprefix("--- ").split(" (")[0].split(":")[0]: found for found in stale(checkout)}

    return change


def test_everything_generated_is_fresh() -> None:
    """Where this fails: `make codegen docs`, then look at the differences."""
    assert "\n".join(stale()) == ""


def test_what_was_just_written_is_fresh(checkout: Path) -> None:
    assert stale(checkout) == []


def test_kernels_stand_once(checkout: Path) -> None:
    """cross has the kernels of mhsa, which it extends; mlp has none."""
    assert [path.name for path in (checkout / "codegen/baselines/triton").iterdir()] == ["mhsa.py"]


def test_a_changed_comment_shows_on_the_pages_alone(edit: Callable[[str, str], dict[str, str]]) -> None:
    found = edit("legs:\n", "# The released code has biases.\nlegs:\n")
    assert sorted(found) == ["docs/designs/cross.md", "docs/designs/mhsa.md"]  # cross refers to its parent's notes
    assert "+The released code has biases." in found["docs/designs/mhsa.md"].splitlines()


def test_a_changed_size_shows_with_its_numbers(edit: Callable[[str, str], dict[str, str]]) -> None:
    found = edit("f: 512", "f: 256")
    assert {
        "codegen/baselines/mhsa.py",
        "docs/designs.md",
        "docs/decoding_state.md",
        "docs/designs/mhsa.md",
        "docs/designs/cross.md",
    } <= set(found)
    assert "-| `f` | size |  | 512 |" in found["docs/designs/mhsa.md"].splitlines()
    assert "+| `f` | size |  | 256 |" in found["docs/designs/mhsa.md"].splitlines()
    assert (
        found["docs/pictures/mhsa-cost.svg"]
        == "docs/pictures/mhsa-cost.svg: plotted from other figures; run 'make docs'."
    )


def test_a_changed_diagram_shows_in_equations_and_picture(edit: Callable[[str, str], dict[str, str]]) -> None:
    found = edit("scale: d ** -0.5", "scale: d ** -1")
    assert "+A[h n m] = softmax over m of d ** -1 * Q[n h d] K[m h d]" in found["docs/designs/mhsa.md"].splitlines()
    assert (
        found["docs/pictures/mhsa.svg"]
        == "docs/pictures/mhsa.svg: drawn from another version of the design; run 'make docs'."
    )
    assert "docs/pictures/mhsa-cost.svg" not in found  # the same work


def test_what_a_removed_design_leaves_behind_is_told(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = shutil.copytree(checkout, tmp_path_factory.mktemp("removed"), dirs_exist_ok=True)
    (removed / "specs/baselines/cross.yaml").unlink()
    monkeypatch.setattr(library, "folder", lambda: removed / "specs")
    strays = [
        "codegen/baselines/cross.py",
        "docs/designs/cross.md",
        "docs/pictures/cross-cost.svg",
        "docs/pictures/cross.svg",
    ]
    found = stale(removed)
    assert found[:4] == [f"{path}: no design has this file; delete it." for path in strays]
    assert found[4].startswith("--- docs/designs.md (committed)\n+++ generated\n")
    assert found[5].startswith("--- docs/decoding_state.md (committed)\n+++ generated\n")
    assert len(found) == 6


def test_a_missing_file_and_an_edited_one_are_told(checkout: Path) -> None:
    (checkout / "docs/designs/mlp.md").unlink()
    (checkout / "codegen/baselines/mhsa.py").write_text("old\n")
    first, second = stale(checkout)
    assert first.startswith("--- codegen/baselines/mhsa.py (committed)\n+++ generated\n@@")
    assert second.startswith("--- docs/designs/mlp.md (committed)\n+++ generated\n@@ -0,0 +1,")


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "pages"]) == 2
    assert (
        capsys.readouterr().err
        == "error: there is no part 'pages'; choose one of codegen, docs, schema, resources, parity.\n"
    )
