"""The text form: what it looks like, that it reads back, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet_attn as ta
from tensornet_attn import DesignError, InputError, limits
from tensornet_attn.graph.model import Box, Contraction, Function, FusedAttention, Graph, Leg, Step, Tensor, Term, Use
from tensornet_attn.graph.pairs import split_products
from tensornet_attn.graph.text import to_text
from tensornet_attn.ir.arithmetic import ONE, Binary, Call, Name, Negative, Number, parse

MHSA = """\
graph mhsa
leg n query
leg m key
leg f = 512
leg h head = 8
leg d 64 = f / h
input x[n f]
input memory[m f] default x
weight Wq[f h d] init xavier
weight Wk[f h d] init xavier
weight Wv[f h d] init xavier
weight Wo[h d f] init xavier
Q[n h d] = x[n f] Wq[f h d]
K[m h d] = memory[m f] Wk[f h d]
V[m h d] = memory[m f] Wv[f h d]
A.of[h n m] = Q[n h d] K[m h d]
A[h n m] = softmax(A.of[h n m]; over m; scale d ** -0.5; dropout 0)
y[n f] = A[h n m] V[m h d] Wo[h d f]
output y
"""


def test_the_text_of_mhsa():
    assert to_text(ta.build(ta.load("mhsa"))) == MHSA


@pytest.mark.rotated
@pytest.mark.parametrize("name", ta.list_designs())
@pytest.mark.parametrize("causal", [None, True])
def test_shipped_designs_read_back(name, causal):
    graph = ta.build(ta.load(name), causal)
    for made in (graph, split_products(graph)):
        text = to_text(made)
        assert Graph.from_text(text) == made
        assert to_text(Graph.from_text(text)) == text


EVERYTHING = """\
graph everything causal
leg n query 64 = 2 ** 6
leg m key 2048
leg p relative 32 = w
leg q relative
leg f = 16
leg h head = 2
leg d 8 = f // h
leg e 8
setting w = 32
setting rate = 0.001
setting tiny = -1e-05
input x[n f]
input memory[m f] default x
weight W[f h d] init normal(f ** -0.5)
weight U[f e] frozen init uniform(-tiny)
weight s[] init full(1 / 3)
weight bias[h p] init zeros
constant C[d e] value kron(eye(2), ones(d / 2, e / 2))
constant R[q f] value sinusoid
noise eps[h n m] always std 2 * rate
noise zeta[] std 1
state pi[h] update T init full(1 / h)
Q[n h d] = -0.5 * x[n f] W[f h d]
K[m h d] = memory[m f] W[f h d] - (d ** -0.5) * memory[m f] W[f h d] + 1
far[h n m] = rel_shift(bias[h p]; over p; to m)
turned[n h d] = rope(Q[n h d]; over n; along d; base 10000; fraction 1 / 2; blocks 1)
kept[n h d] = topk(turned[n h d]; by Q[n h d]; over d; k 4)
cut[n h d] = map(kept[n h d]; map clamp(-1, 2.5))
S[h n m] = s[] cut[n h d] K[m h d] + far[h n m] + (1 - rate) * eps[h n m] - 2
A[h n m] = softmax(S[h n m]; over m; scale n ** -0.5; dropout 0.1; mask band(w); mask window(2 * w, -1); mask band(w))
rates[m h] = mean(K[m h d]; over d)
F[n h d] = delta_rule(query Q[n h d]; key K[m h d]; value K[m h d]; rate rates[m h]; over m; eps 1e-06; normalize both)
T[h] = sum(A[h n m]; over m)
y.of[n f] = A[h n m] K[m h d] W[f h d]
y[n f] = dropout(y.of[n f]; dropout 0.1)
output y
"""


def test_every_part_reads_back():
    """A text need not be a diagram that computes: that is for `build` to say."""
    text = EVERYTHING.replace("T[h] = sum(A[h n m]; over m)", "T[h] = 1")
    graph = Graph.from_text(text)
    assert to_text(graph) == text
    assert graph.leg["m"] == Leg("m", "key", maximum=2048)
    assert graph.leg["p"] == Leg("p", "relative", size=65, reach=32, text=Name("w"))
    assert graph.settings == (("w", 32), ("rate", 0.001), ("tiny", -1e-05))
    assert graph.tensor["U"] == Tensor(
        "U", "weight", ("f", "e"), Function("uniform", (Negative(Name("tiny")),)), frozen=True
    )
    assert graph.tensor["memory"] == Tensor("memory", "input", ("m", "f"), default="x")
    assert graph.tensor["pi"].update == "T"
    assert graph.step["K"].op.terms[1].coefficient == Negative(parse("d ** -0.5"))
    assert graph.step["K"].op.terms[2] == Term(ONE, ())
    assert graph.step["turned"].op == Box(
        "rope",
        "n",
        (("of", Use("Q", ("n", "h", "d"))),),
        (("base", Number(10000)), ("fraction", parse("1 / 2")), ("blocks", Number(1))),
        (),
        "d",
    )
    assert graph.causal


def test_blank_lines_and_comments_are_skipped():
    assert Graph.from_text("# made by hand\n\n" + MHSA.replace("\n", "\n\n")) == ta.build(ta.load("mhsa"))


def fused(**parts) -> Graph:
    mhsa = ta.build(ta.load("mhsa"))
    of = {"query": Use("Q", ("n", "h", "d")), "key": Use("K", ("m", "h", "d")), "value": Use("V", ("m", "h", "d"))}
    op = {
        "scores": ("h", "n", "m"),
        "scale": parse("d ** -0.5"),
        "dropout": Number(0),
        "masks": (),
        "steps": ("A.of", "A"),
    }
    attention = Step("A.o", FusedAttention("m", **of, **(op | parts)), ("n", "h", "d"))
    last = Step("y", Contraction((Term(ONE, (Use("A.o", ("n", "h", "d")), Use("Wo", ("h", "d", "f")))),)), ("n", "f"))
    return replace(mhsa, steps=(*(step for step in mhsa.steps if step.name in "QKV"), attention, last))


def test_fused_attention():
    line = (
        "A.o[n h d] = attention(query Q[n h d]; key K[m h d]; value V[m h d]; over m; scores h n m; "
        "scale d ** -0.5; dropout 0; steps A.of A)"
    )
    assert line in to_text(fused()).splitlines()


BAND = Function("band", (Number(2),))


@pytest.mark.parametrize(
    "parts", [{}, {"masks": (BAND, BAND, Function("causal"))}, {"steps": ()}, {"dropout": Number(0.1)}]
)
def test_fused_attention_reads_back(parts):
    assert Graph.from_text(to_text(fused(**parts))) == fused(**parts)


LEGS = [
    Leg("a", "size", 2),
    Leg("a", "size", 2, text=Number(2)),
    Leg("a", "size", 2, text=parse("1 + 1")),
    Leg("a", "head", 2),
    Leg("a", "head"),
    Leg("a", "query"),
    Leg("a", "key", maximum=7),
    Leg("a", "key", size=3, maximum=7, text=parse("3 + 4")),
    Leg("a", "query", size=3),
    Leg("a", "relative"),
    Leg("a", "relative", 65, reach=32, text=Number(32)),
    Leg("a", "relative", 9),
]


@pytest.mark.parametrize("leg", LEGS, ids=str)
def test_legs_read_back(leg):
    step = Step("y", Contraction((Term(ONE, ()),)), ())
    graph = Graph("g", (leg,), (), (), (step,), "y")
    assert Graph.from_text(to_text(graph)) == graph


numbers = st.one_of(st.integers(0, 10**30), st.floats(0, 1e300, allow_nan=False)).map(Number)
trees = st.recursive(
    st.one_of(numbers, st.sampled_from([Name("a"), Name("init"), Name("size")])),
    lambda inner: st.one_of(
        inner.map(Negative),
        st.builds(Binary, st.sampled_from(["+", "-", "*", "/", "//", "**"]), inner, inner),
        st.builds(lambda one: Call("sqrt", (one,)), inner),
        st.builds(lambda one, other: Call("max", (one, other)), inner, inner),
    ),
    max_leaves=8,
)


@given(
    st.lists(trees, min_size=1, max_size=4),
    trees,
    st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
)
def test_any_arithmetic_reads_back(coefficients, std, setting):
    terms = tuple(Term(tree, (Use("w", ("a",)),) * (place % 3)) for place, tree in enumerate(coefficients))
    numbers = (("scale", std), ("dropout", Number(0)))
    steps = (
        Step("y", Contraction(terms), ("a",)),
        Step(
            "z.of", Box("softmax", "a", (("of", Use("y", ("a",))),), numbers, (Function("window", (std, std)),)), ("a",)
        ),
    )
    tensors = (Tensor("w", "weight", ("a",), Function("normal", (std,))), Tensor("e", "noise", ("a",), std=std))
    graph = Graph("g", (Leg("a", "size", 3),), (("init", setting), ("size", 1)), tensors, steps, "y")
    assert Graph.from_text(to_text(graph)) == graph


# A change of mhsa's text: what is said.
REFUSED = {
    ("leg h head = 8", "leg h head = 8 8"): "graph:5:16: syntax: expected an operator, got '8'.",
    ("leg d 64 = f / h", "leg h 64"): "graph:6:5: name-taken: 'h' is already declared.",
    ("leg d 64 = f / h", "leg d 0"): "graph:6:5: bad-size: leg 'd' has no valid size.",
    ("leg d 64 = f / h", "leg class 64"): "graph:6:5: name: 'class' is a Python keyword.",
    ("input x[n f]", "input x[n g]"): "graph:7:11: unknown-leg: there is no leg 'g'.",
    ("input x[n f]", "input x[n n]"): "graph:7:7: leg-twice: a leg occurs twice on 'x'.",
    ("input x[n f]", "input forward[n f]"): "graph:7:7: name: 'forward' is an attribute of every nn.Module.",
    ("input x[n f]", "input x[n f] default z"): "graph:7:22: unknown-name: there is no input 'z' above this one.",
    ("input x[n f]", "input x[n f] init ones"): "graph:7:14: syntax: expected nothing more.",
    ("input x[n f]", "inputs x[n f]"): "graph:7:1: syntax: this is not a line of a graph.",
    ("Wq[f h d] init xavier", "Wq[f h d] init savier"): "graph:9:23: unknown-value: 'savier' is unknown here.",
    ("Wq[f h d] init xavier", "Wq[f h d] init normal"):
        "graph:9:23: arguments: number of arguments of 'normal': expected 1, got 0.",
    ("Wq[f h d] init xavier", "Wq[f h d] init normal(z)"): "graph:9:30: unknown-leg: there is no leg or setting 'z'.",
    ("Wq[f h d] init xavier", "Wq[f h d] init kron(eye(), eye(2))"):
        "graph:9:28: arguments: 'eye' needs arguments here.",
    ("input x[n f]", "state s[] update y init zeros\ninput x[n f]"):
        "graph:20:1: unknown-name: there is no step 'y' with the legs of 's'.",
    ("Wq[f h d] init xavier", "Wq[f h d]"): "graph:9:1: syntax: expected 'init'.",
    ("= Q[n h d] K[m h d]", "= Q[n h d] B[m h d]"):
        "graph:16:24: unknown-name: there is no tensor or step 'B' above this line.",
    ("= Q[n h d] K[m h d]", "= Q[n h d] K[m h]"): "graph:16:24: leg-count: 'K' has 3 different legs.",
    ("= Q[n h d] K[m h d]", "= Q[n h d] * K[m h d]"): "graph:16:23: syntax: expected '+' or '-'.",
    ("= Q[n h d] K[m h d]", "= (2 * Q[n h d]"): "graph:16:15: syntax: this parenthesis is not closed.",
    ("= Q[n h d] K[m h d]", "= 2 * "): "graph:16:18: syntax: expected a tensor such as 'x[n f]'.",
    ("= softmax(", "= hardmax("): "graph:17:12: unknown-box: there is no box 'hardmax'.",
    ("; over m", ""): "graph:17:12: missing-key: 'softmax' lacks 'over'.",
    ("; over m", "; over m; over m"): "graph:17:41: duplicate-key: 'over' is given twice.",
    ("; over m", "; over m n"): "graph:17:38: syntax: expected one leg.",
    ("; over m", "; over m; k 2"): "graph:17:12: unknown-key: 'softmax' has no 'k'.",
    ("; over m", "; over m; spread 2"): "graph:17:41: unknown-key: 'spread' is not a part of a box.",
    ("; over m", "; over m; mask bond(2)"): "graph:17:46: unknown-value: 'bond' is unknown here.",
    ("scale d", "scale z"): "graph:17:47: unknown-leg: there is no leg or setting 'z'.",
    ("output y", "output z"): "graph:19:8: unknown-name: there is no step 'z'.",
    ("output y", ""): "graph:19:1: missing-key: the line 'output' is missing.",
    ("graph mhsa", "graph 8"): "graph:1:7: name: '8' is not a valid name.",
    ("leg n query", "graph again"): "graph:2:7: name: this is a second 'graph' line.",
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED.items(), ids=[change[1] for change in REFUSED])
def test_refusals_name_the_place(change, message):
    with pytest.raises(DesignError) as raised:
        Graph.from_text(MHSA.replace(*change, 1))
    (problem,) = raised.value.problems
    assert str(problem).splitlines()[0] == message


def test_the_line_is_shown():
    with pytest.raises(DesignError) as raised:
        Graph.from_text(MHSA.replace("Wo[h d f]\n", "Wa[h d f]\n", 1))
    assert str(raised.value).splitlines() == [
        "graph:18:28: unknown-name: there is no tensor or step 'Wa' above this line.",
        "    y[n f] = A[h n m] V[m h d] Wa[h d f]",
        "                               ^^",
        "  hint: known here: A, A.of, K, Q, V, Wk, Wo, Wq, Wv, memory, x.",
    ]


def test_no_text():
    with pytest.raises(InputError) as raised:
        Graph.from_text(7)
    assert str(raised.value) == "expected the text of a graph, got int."
    with pytest.raises(InputError) as raised:
        Graph.from_text("#" * (limits.GRAPH_BYTES + 1))
    assert str(raised.value) == f"the text of a graph must have at most {limits.GRAPH_BYTES} bytes."
    with pytest.raises(DesignError) as raised:
        Graph.from_text("")
    assert str(raised.value) == "graph:1:1: missing-key: the line 'graph' is missing."


@given(st.integers(0, len(MHSA)), st.integers(0, 20), st.text(alphabet="[]();=+-*/. \n#nhxy2\u2028é", max_size=6))
def test_damage_is_refused_or_read(start, length, text):
    damaged = MHSA[:start] + text + MHSA[start + length :]
    try:
        graph = Graph.from_text(damaged)
    except DesignError:
        return
    assert Graph.from_text(to_text(graph)) == graph
