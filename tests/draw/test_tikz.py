"""TikZ for papers: the places of the other pictures, text without commands, and pages that LaTeX compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import tensornet_attn as ta
from tensornet_attn import compiler
from tensornet_attn.draw import to_dot, to_tikz
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Graph

PAGE = r"""\documentclass{article}
\usepackage[paperwidth=40in,paperheight=150in,margin=1in]{geometry}
\usepackage{tikz}
\begin{document}
%s
\end{document}
"""


def test_everything_is_drawn_once(mixed: Graph) -> None:
    drawn, dot = to_tikz(mixed), to_dot(mixed)
    assert drawn.startswith(f"% {mixed.name}\n")
    assert drawn.count(".. controls") >= len(re.findall(" -- ", dot))
    for words in ("x", "Wq", "A: softmax over m", "scale = d $*$$*$ -0.5", "trainable"):
        assert words in drawn
    assert drawn.count(r"\begin{tikzpicture}") == drawn.count(r"\end{tikzpicture}") == 1
    assert to_tikz(mixed) == drawn


def test_text_is_no_command(mixed: Graph) -> None:
    drawn = to_tikz(mixed, title=r"a\input{secret} $x$ 100% #1 & ~ ^ _ {}", about="two\nlines \\end{tikzpicture}")
    title = r"a\textbackslash{}input\{secret\} \$x\$ 100\% \#1 \& \textasciitilde{} \textasciicircum{} \_ \{\}"
    assert f"{{{title}}};" in drawn
    assert [line for line in drawn.splitlines() if "two" in line] == [r"% two lines \end{tikzpicture}"]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX is installed")
@pytest.mark.parametrize("names", [("thsa",), pytest.param(("*", "fmm1_rows"), marks=pytest.mark.slow)], ids=str)
def test_latex_compiles(names: tuple[str, ...], tmp_path: Path) -> None:
    """Designs on a page each; one of them, and in slow runs another, with every theme and overlay."""
    pictures = [compiler.picture(name, "tex").decode() for name in ta.list_designs(names[0])]
    for name in names[-1:]:
        pictures += [compiler.picture(name, "tex", theme=theme).decode() for theme in ("dark", "print")]
        pictures += [compiler.picture(name, "tex", overlay=overlay).decode() for overlay in ("plan", "cost")]
    (tmp_path / "page.tex").write_text(PAGE % "\n\\clearpage\n".join(pictures), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"({len(pictures)} pages" in done.stdout
    assert "Overfull" not in done.stdout
    assert "Missing character" not in (tmp_path / "page.log").read_text(encoding="latin-1")


def test_a_dark_picture_has_its_ground() -> None:
    graph = build(ta.load("mhsa"))
    assert r"\fill[" not in to_tikz(graph)
    assert r"\definecolor{tn1}{HTML}{15181D}" in compiler.picture("mhsa", "tex", theme="dark").decode()
