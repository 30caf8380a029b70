"""Builds the playground's page: `python docs/playground/build.py [FOLDER]`, by default in `build/playground`.

The folder is self-contained, and any file server can serve it. It contains the page, two scripts with CodeMirror and
Graphviz, Pyodide, and Python packages with byte code. Packages from npm and PyPI are downloaded at the versions of
`package-lock.json` and `requirements.txt`; they are not committed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "playground-work"  # reused by later builds: node_modules and wheels
PLATFORM, VERSION = "pyemscripten_2026_0_wasm32", "3.14"  # of Pyodide 314
OF_PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
UNPACKED = ("pydantic_core",)  # its extension module cannot be imported from an archive
LEFT_OUT = ("tests", "testing", "mypy.py")  # files of libraries that the page does not need
# Folders of the package that the page does not need: those that run modules in torch, and the layers after the
# compiler.
BEHIND = "nn report models tasks hf convert analyse bench train compare search cli".split()


class BuildError(Exception):
    """The page cannot be built; the message is the reason."""


def main(arguments: Sequence[str]) -> int:
    target = Path(arguments[0]).resolve() if arguments else ROOT / "build" / "playground"
    try:
        build(target)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    print(f"{target}: {size / 1e6:.1f} MB; 'tensornet-attn playground' serves it")
    return 0


def build(target: Path) -> None:
    """Builds the page in a temporary folder and moves it to the target. Raises BuildError."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise BuildError(
                f"'{program}' is not installed; building the playground needs Node.js 18 or later: 'apt-get install "
                "nodejs npm', or see https://nodejs.org."
            )
    made, stage = WORK / "page", WORK / "stage"
    for folder in (made, stage):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    modules = node_modules()
    for file in ("index.html", "style.css"):
        shutil.copy(HERE / file, made)
    environment = {"NODE_PATH": str(modules)}
    scripts = [str(HERE / "main.js"), str(HERE / "worker.js")]
    options = ["--bundle", "--format=esm", "--target=es2022", "--minify", "--log-level=warning", f"--outdir={made}"]
    run([str(modules / ".bin" / "esbuild"), *scripts, *options], **environment)
    (made / "pyodide").mkdir()
    for file in OF_PYODIDE:
        shutil.copy(modules / "pyodide" / file, made / "pyodide")
    python(stage)
    run(["node", str(HERE / "precompile.mjs"), str(stage)], **environment)
    packed(stage / "libraries", made / "libraries.zip")
    packed(stage / "package", made / "package.zip")
    data(made)
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(made, target)


def node_modules() -> Path:
    """Installs the npm packages of the lock file, unless they are installed, and returns their folder."""
    home, lock = WORK / "npm", (HERE / "package-lock.json").read_text(encoding="utf-8")
    installed = home / "installed-lock.json"
    if not installed.exists() or installed.read_text(encoding="utf-8") != lock:
        home.mkdir(parents=True, exist_ok=True)
        for file in ("package.json", "package-lock.json"):
            shutil.copy(HERE / file, home)
        run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefix", str(home)])
        installed.write_text(lock, encoding="utf-8")
    return home / "node_modules"


def python(stage: Path) -> None:
    """Unpacks the project's wheel and those of `requirements.txt`, without other dependencies such as torch."""
    wheels, pip = WORK / "wheels", [sys.executable, "-m", "pip"]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    needed = ["--requirement", str(HERE / "requirements.txt"), "--dest", str(wheels), "--only-binary", ":all:"]
    platforms = ["--platform", PLATFORM, "--platform", "any", "--python-version", VERSION, "--implementation", "cp"]
    shutil.rmtree(wheels, ignore_errors=True)
    run([*pip, "download", *quiet, *needed, *platforms])
    run([*pip, "wheel", *quiet, "--wheel-dir", str(wheels), str(ROOT)])
    for wheel in sorted(wheels.glob("*.whl")):
        own = wheel.name.startswith(("tensornet_attn", *UNPACKED))
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if ".dist-info/" not in name]
            names = [name for name in names if own or not {*name.split("/")} & {*LEFT_OUT}]
            names = [name for name in names if not name.startswith(tuple(f"tensornet_attn/{one}/" for one in BEHIND))]
            archive.extractall(stage / ("package" if own else "libraries"), names)
    shutil.copy(HERE / "answers.py", stage / "package")


def packed(folder: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                made.write(file, file.relative_to(folder))


def data(made: Path) -> None:
    """Writes the shipped designs and the schema, so that first paint and completion do not need Python."""
    sys.path.insert(0, str(ROOT))
    from tensornet_attn.cli.designs import value_of
    from tensornet_attn.spec import json_schema, library

    paths = [(name, library.path_of(name)) for name in library.names()]
    designs = [
        {"name": name, "family": path.parent.name, "about": value_of(path, "about"), "text": path.read_text("utf-8")}
        for name, path in paths
    ]
    for name, content in (("designs", designs), ("schema", json_schema())):
        (made / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def run(command: list[str], **environment: str) -> None:
    """Runs a command. Raises BuildError with the last lines of its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        output = "\n".join(line[:200] for line in lines[-12:])  # an error of Pyodide has its whole script in one line
        raise BuildError(f"'{Path(command[0]).name} {' '.join(command[1:3])} ...' failed:\n{output}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
