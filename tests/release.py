"""`make release-check`: what a release would publish, built, looked at and installed in clean environments.

`python -m tests.release [--no-extras]`. It builds wheel and sdist, checks what they hold, installs each without extras
in an environment of its own, where a design is checked, compiled and run, and asks pip to resolve every extra.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECK = """
import torch, tensornet_attn as ta
assert ta.__version__ == {version!r}, ta.__version__
assert len(ta.list_designs()) > 50 and ta.check("thsa") == []
assert ta.cost("mhsa").best.total.macs > 0
layer = ta.compile(ta.load("gqa", legs={{"f": 32, "g": 2, "j": 2}}), causal=True)
layer(torch.randn(2, 5, 32)).sum().backward()
assert layer.Wq.grad is not None
"""
IN_WHEEL = ("tensornet_attn/__init__.py", "tensornet_attn/py.typed", "tensornet_attn/_specs/baselines/mhsa.yaml")
IN_SDIST = (
    "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "Makefile",
    "constraints.txt", "specs/baselines/mhsa.yaml", "tests/conftest.py", "docs/language.md", "docs/tutorial.md",
    "docs/site/conf.py", "docs/notebooks/search.ipynb", "docs/pictures/thsa.svg",
)  # fmt: skip
NEVER = (".venv/", ".ci/", "build/", "dist/", "demo/", "__pycache__/", "node_modules/", "runs/")


def build(folder: Path) -> tuple[Path, Path]:
    """Wheel and sdist of the tree."""
    run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)])
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def contents(path: Path) -> set[str]:
    """The files in a wheel or an sdist, without the folder that holds all of an sdist."""
    if path.suffix == ".whl":
        return {*zipfile.ZipFile(path).namelist()}
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def problems(names: Iterable[str], needed: Iterable[str]) -> list[str]:
    """What is missing and what should not be there, a sentence each."""
    names = {*names}
    found = [f"'{name}' is missing." for name in needed if name not in names]
    for part in NEVER:
        stray = sorted(name for name in names if name.startswith(part) or f"/{part}" in name)
        if stray:
            found.append(f"'{stray[0]}' and {len(stray) - 1} more files of '{part}' do not belong there.")
    return found


def extras() -> list[str]:
    """The optional parts that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return sorted(project["optional-dependencies"])


def install(archive: Path, folder: Path, version: str) -> None:
    """Installs an archive without extras in an environment of its own, and uses it from an empty folder."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    constraint = ["--constraint", str(ROOT / "constraints.txt")]
    run([str(python), "-m", "pip", "install", "--quiet", "--no-compile", *constraint, str(archive)])
    with tempfile.TemporaryDirectory() as empty:
        run([str(python), "-c", CHECK.format(version=version)], cwd=empty)
        run([str(folder / "bin" / "tensornet-attn"), "check", "mhsa", "thsa"], cwd=empty)


def resolve(wheel: Path, extra: str) -> None:
    """Asks pip which packages an extra takes, without installing them."""
    constraint = ["--constraint", str(ROOT / "constraints.txt")]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", *constraint]
    run([*command, f"tensornet-attn[{extra}] @ {wheel.as_uri()}"])


def run(command: list[str], cwd: str | None = None) -> None:
    """Runs a command away from this tree's package. Raises SystemExit with its output where it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)}\n{done.stdout}{done.stderr}")


def main(arguments: list[str]) -> int:
    """All checks, one line each."""
    version: dict[str, str] = {}
    exec((ROOT / "tensornet_attn" / "version.py").read_text(encoding="utf-8"), version)

    def step(words: str, work: Callable[[], object]) -> None:
        work()
        print(f"ok  {words}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        wheel, sdist = build(Path(folder))
        print(f"ok  built {wheel.name} and {sdist.name}", flush=True)
        found = problems(contents(wheel), IN_WHEEL) + problems(contents(sdist), IN_SDIST)
        if found:
            raise SystemExit("\n".join(f"error: {sentence}" for sentence in found))
        print("ok  the archives hold what they should", flush=True)
        number = version["__version__"]
        step("the wheel works without extras", lambda: install(wheel, Path(folder, "wheel"), number))
        step("the sdist works without extras", lambda: install(sdist, Path(folder, "sdist"), number))
        for extra in [] if "--no-extras" in arguments else extras():
            step(f"the extra '{extra}' resolves", lambda extra=extra: resolve(wheel, extra))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
