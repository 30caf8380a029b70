"""`make release-check`: builds wheel and sdist, checks their contents, installs and uses them in clean environments.

`python -m tests.release [--no-extras]`. Each archive is installed without extras in an environment of its own, where
designs are checked, compiled and run. Each extra is installed on top of the wheel in a further environment and used.
"""

from __future__ import annotations

import os
import shutil
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
USES = {  # what each extra is for, in few seconds
    "bleu": "import sacrebleu; assert sacrebleu.corpus_bleu(['a b c d'], [['a b c d']]).score > 99",
    "draw": "import tensornet_attn as ta; ta.draw('mhsa', 'mhsa.svg')",
    "hf": """
import torch, tensornet_attn as ta
from transformers import BertConfig, BertModel
model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)).eval()
ids = torch.arange(6)[None]
before = model(ids).last_hidden_state
torch.testing.assert_close(ta.convert_model(model, "mhsa")(ids).last_hidden_state, before, rtol=1e-4, atol=1e-4)
""",
    "plot": "import torch, tensornet_attn as ta; ta.plot_ranks(torch.rand(2, 3, 4, 4).softmax(-1))",
    "postgres": "import psycopg",
    "search": """
import tensornet_attn as ta
space = {"space": 1, "name": "small", "base": ["mhsa"], "legs": {"f": 16, "h": [1, 2]}, "moves": {"gate": None}}
rung = {"task": "copy", "options": {"length": 8}, "run": {"steps": 2, "batch": 2, "mlp": "none"}, "rates": [0.01]}
study = {"study": 1, "space": space, "objectives": ["quality"], "rungs": [rung], "trials": 2, "finalists": 1}
ta.search(config=study, out="study")
""",
    "site": "import furo, myst_nb, sphinx, sphinx_copybutton, sphinx_design",
    "test": "import hypothesis, playwright, pytest, xdist",
    "train": "import tensornet_attn as ta; ta.train(design='mhsa', task='copy', steps=2, width=16, out='run')",
    "triton": """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch, tensornet_attn as ta
design = ta.load("hard_fish", legs={"f": 32, "g": 2, "h": 4})
layer, plain = ta.compile(design, backend="triton"), ta.compile(design)
plain.load_state_dict(layer.state_dict())
x = torch.randn(1, 20, 32)
torch.testing.assert_close(layer(x), plain(x), rtol=1e-3, atol=1e-4)
""",
}
IN_WHEEL = (
    "tensornet_attn/__init__.py", "tensornet_attn/py.typed", "tensornet_attn/_specs/baselines/mhsa.yaml",
    "tensornet_attn/cost/papers/epa.toml",
)  # fmt: skip
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
    pip_install(folder, str(archive))
    use(folder, CHECK.format(version=version))
    with tempfile.TemporaryDirectory() as empty:
        run([str(folder / "bin" / "tensornet-attn"), "check", "mhsa", "thsa"], cwd=empty)


def install_extra(wheel: Path, base: Path, folder: Path, extra: str) -> None:
    """Installs an extra in an environment that also sees the packages of `base`, the wheel's, and uses it.

    Only the extra's own packages are downloaded: torch and the rest are those of `base`.
    """
    venv.create(folder, with_pip=True)
    (packages,) = base.glob("lib/python*/site-packages")
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "base.pth").write_text(f"{packages}\n", encoding="utf-8")
    pip_install(folder, f"tensornet-attn[{extra}] @ {wheel.as_uri()}")
    use(folder, USES[extra])


def pip_install(folder: Path, requirement: str) -> None:
    """Installs a requirement in the environment `folder`, with the versions that the tests use."""
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    run([*command, "--constraint", str(ROOT / "constraints.txt"), requirement])


def use(folder: Path, code: str) -> None:
    """Runs Python code with the environment `folder`, in an empty working folder, without the machine's programs."""
    with tempfile.TemporaryDirectory() as empty:
        run([str(folder / "bin" / "python"), "-c", code], cwd=empty, path=str(folder / "bin"))


def run(command: list[str], cwd: str | None = None, path: str | None = None) -> None:
    """Runs a command without this tree's package, with `path` as PATH. Raises SystemExit if it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PATH"] = path or environment["PATH"]
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
        wheel_env = Path(folder, "wheel")
        step("the wheel works without extras", lambda: install(wheel, wheel_env, number))
        step("the sdist works without extras", lambda: install(sdist, Path(folder, "sdist"), number))
        for extra in [] if "--no-extras" in arguments else extras():
            own = Path(folder, extra)
            step(f"the extra '{extra}' works", lambda extra=extra, own=own: install_extra(wheel, wheel_env, own, extra))
            shutil.rmtree(own)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
