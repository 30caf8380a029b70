"""Long lines are broken without a change of meaning; numbers and names become Python."""

from __future__ import annotations

import ast

import pytest

import tensornet_attn as ta
from tensornet_attn.emit.names import Names, class_name, docstring_text
from tensornet_attn.emit.numbers import integer_text, number_text
from tensornet_attn.emit.wrap import WIDTH, wrapped
from tensornet_attn.graph import build
from tensornet_attn.ir.arithmetic import parse
from tensornet_attn.ir.values import ATOM, PRODUCT, SUM, TensorText, permuted

LINES = [
    "x = f(a, b)  # ... n m",
    f"y = function({', '.join(f'argument_{i}' for i in range(12))})  # ... n m",
    f"y = function({', '.join(f'argument_{i}' for i in range(7))}).unflatten(-1, (self.W.shape[0], self.W.shape[1]))",
    f"L = {' + '.join(f'first_{i}[..., None] * second_{i}' for i in range(6))} - last  # h n m",
    f"""L = torch.einsum("...nhd,...mhd->...hnm", {"a" * 60}, {"b" * 60})""",
    f"return {' - '.join(f'g(a_{i}, (b, c))' for i in range(12))}",
    f"def forward(self, {', '.join(f'x{i}: Tensor' for i in range(14))}) -> Tensor: pass",
    "z = " + "a" * 130,
    f"sum = f({' + '.join(f'argument_{i}' for i in range(12))}, {' - '.join(f'b_{i}' for i in range(20))}, c)  # n",
    f"far = f(g({', '.join(f'x_{i}' for i in range(30))}), h({', '.join(f'y_{i}' for i in range(30))}))",
]


@pytest.mark.parametrize("line", LINES)
def test_a_broken_line_means_the_same(line: str) -> None:
    lines = wrapped(line, 8)
    assert ast.dump(ast.parse("\n".join(lines))) == ast.dump(ast.parse(line))
    assert all(8 + len(part) <= WIDTH for part in lines) or "a" * 130 in line
    assert (len(lines) == 1) == (8 + len(line) <= WIDTH or "a" * 130 in line)


def test_a_broken_line_looks_formatted() -> None:
    terms = " + ".join(f"some_tensor_{i}[..., None] * another_{i}" for i in range(4))
    assert wrapped(f"L = {terms}  # h n m", 8) == [
        "L = (",
        "    some_tensor_0[..., None] * another_0",
        "    + some_tensor_1[..., None] * another_1",
        "    + some_tensor_2[..., None] * another_2",
        "    + some_tensor_3[..., None] * another_3",
        ")  # h n m",
    ]


@pytest.mark.parametrize(
    ("have", "want", "text"),
    [
        ("nhd", "nhd", "x"),
        ("nhd", "hnd", "x.transpose(-3, -2)"),
        ("nhd", "hdn", "x.movedim(-3, -1)"),
        ("nhd", "dnh", "x.movedim(-1, -3)"),
        ("abcd", "badc", "x.movedim((-3, -4, -1, -2), (-4, -3, -2, -1))"),
        ("abcd", "adbc", "x.movedim(-1, -3)"),
    ],
)
def test_permutations(have: str, want: str, text: str) -> None:
    assert permuted("x", tuple(have), tuple(want)) == text


def test_alignment_and_groups() -> None:
    x = TensorText("x", ("n", "h", "d"), True)
    assert x.aligned(("n", "r", "h", "d")).text == "x[..., None, :, :]"
    assert TensorText("w", ("h",), False).aligned(("n", "h", "d")).text == "w[:, None]"
    assert TensorText("w", ("h",), False).aligned(("n", "h"), whole=True).text == "w[None, :]"
    assert TensorText("a + b", ("h",), True, SUM).aligned(("h", "d")).text == "(a + b)[..., None]"
    assert x.grouped((("h",), ("n",), ("d",))) == "x.transpose(-3, -2)"
    assert x.grouped((("h", "d"), ("n",))) == "x.flatten(-2).transpose(-2, -1)"
    assert x.grouped((("d", "h"), ("n",))) == "x.transpose(-3, -1).flatten(-3, -2)"
    assert x.grouped(((), ("n",), ("h", "d"))) == "x.flatten(-2).unsqueeze(-3)"


def test_numbers() -> None:
    graph = build(ta.load("band", legs={"f": 64}))

    def text(tree: str) -> tuple[str, int]:
        return number_text(parse(tree), graph, lambda name: {"d": "self.Wq.shape[2]", "n": "n", "k": "5"}[name])

    assert text("0.5") == ("0.5", ATOM)
    assert text("-2") == ("-2", PRODUCT)
    assert text("d ** -0.5") == ("self.Wq.shape[2] ** -0.5", PRODUCT)
    assert text("1 - k / 7") == ("1 - 5 / 7", SUM)
    assert text("(k - 1) // 2") == ("2", ATOM)
    assert text("sqrt(d) + log(2)") == ("math.sqrt(self.Wq.shape[2]) + math.log(2)", SUM)
    assert text("2 ** 80") == ("1.2089258196146292e+24", ATOM)
    assert text("d ** 40") == ("1.329227995784916e+36", ATOM)
    assert text("1 / n") == ("1 / at_least_one(n)", PRODUCT)


def test_integers() -> None:
    graph = build(ta.load("band", legs={"f": 64}))

    def text(tree: str) -> str:
        return integer_text(parse(tree), graph, lambda name: {"d": "self.Wq.shape[2]"}[name])

    assert (text("d // 2"), text("d / 2"), text("k"), text("2 ** 3 * d ** 0")) == (
        "self.Wq.shape[2] // 2",
        "4",
        "5",
        "8",
    )


def test_names() -> None:
    names = Names(frozenset({"visible"}))
    assert [names.diagram_name(name) for name in ("q", "torch", "visible", "q")] == ["q", "torch_", "visible_", "q_"]
    assert [names.fresh(name) for name in ("q", "keep", "keep", "max")] == ["q_2", "keep", "keep_2", "max_2"]


def test_class_names() -> None:
    def named(design: str, *texts: str) -> str:
        return class_name(design, texts, frozenset({"ValueError"}))

    assert named("hard_fish") == "HardFish"
    assert named("mhsa", "Multi-head self-attention.") == "MHSA"
    assert named("transformer_xl", "Dai et al., Transformer-XL") == "TransformerXL"
    assert [named(name) for name in ("value_error", "none", "tensor", "f")] == ["ValueError_", "None_", "Tensor_", "F_"]


def test_texts_of_a_docstring() -> None:
    assert docstring_text('a\n"""b\\c\u202e d') == "a '''b/c d"
    assert len(docstring_text("x" * 1000)) == 400
