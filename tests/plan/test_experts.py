"""Grouped experts: where they are chosen, why not elsewhere, and that designs compute the same with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tensornet_attn as ta
from tensornet_attn.cost.target import target_from
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Contraction, Kernel
from tensornet_attn.plan.make import make_plan
from tensornet_attn.plan.plan import Plan
from tests.agreement import outcome, same_outcome

LETTERS = "v k q o vk vq kq ko vo qo vkq vko vqo kqo vkqo rope xl".split()
EPA = ["epa", *(f"epa_{letters}" for letters in LETTERS if letters != "vo")]
DESIGNS = [*EPA, "sigma_moe"]
SIZES = {"f": 12, "h": 3, "e": 16}  # of many small experts, those that are chosen pay
LOOSE = {"rtol": 1e-9, "atol": 1e-10}


def made(source: Any, backend: str = "torch", k: int = 2, e: int = 16, seed: int = 0, **options: Any) -> nn.Module:
    sizes = {"f": 12, "e": e, "l": 5} if source == "sigma_moe" else SIZES | {"e": e}
    design = ta.load(source, legs=sizes, settings={"k": k}) if isinstance(source, str) else ta.load(source)
    torch.manual_seed(seed)
    return ta.compile(design, backend, dtype=torch.float64, device_costs="generic", **options).eval()


def twins(source: Any, **options: Any) -> tuple[nn.Module, nn.Module]:
    """The design with grouped experts and as written, of the same weights."""
    fast, plain = made(source, **options), made(source, "reference", **options)
    plain.load_state_dict(fast.state_dict())
    assert list(fast.state_dict()) == list(plain.state_dict())
    return fast, plain


def kernels(module: nn.Module) -> list[str]:
    """The products that are grouped."""
    return made_by(module.plan)


def same(source: Any, x: Tensor, masks: dict[str, Tensor] | None = None, **options: Any) -> None:
    fast, plain = twins(source, **options)
    assert kernels(fast)
    same_outcome(fast, plain, [x], **(masks or {}))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("batch", [(), (2,), (2, 1, 3), (0,)])
def test_values_and_gradients(name: str, batch: tuple[int, ...]) -> None:
    same(name, normal(*batch, 5, 12))


@pytest.mark.parametrize("name", ["epa_vkqo", "epa_xl", "sigma_moe"])
@pytest.mark.parametrize(("k", "n"), [(1, 5), (3, 1), (4, 7)])
def test_numbers_of_chosen_experts_and_lengths(name: str, k: int, n: int) -> None:
    same(name, normal(2, n, 12), k=k, e=25 * k)


@pytest.mark.parametrize("name", ["epa_vkqo", "epa_xl"])
@pytest.mark.parametrize("causal", [True, False])
def test_masks(name: str, causal: bool) -> None:
    key_mask = torch.tensor([[False, True, True, False, True], [False] * 5])
    mask = normal(5, 5) > 0
    same(name, normal(2, 5, 12), {"key_mask": key_mask, "mask": mask}, causal=causal)


@pytest.mark.parametrize("name", DESIGNS)
def test_of_equal_gates_the_first_win(name: str) -> None:
    fast, plain = twins(name)
    for module in (fast, plain):
        for key, weight in module.named_parameters():
            if key in ("Ss", "Sd", "Ws"):
                nn.init.zeros_(weight)
    x = normal(2, 5, 12)
    found = outcome(fast, [x])
    torch.testing.assert_close(found, outcome(plain, [x]), **LOOSE)
    for (key, _), gradient in zip(fast.named_parameters(), found[2:], strict=True):
        axes = [axis for axis, size in enumerate(gradient.shape) if size == 16]
        if axes and key.startswith("W") and key != "Ws":  # the others get exactly nothing
            assert not gradient.narrow(axes[0], 2, 14).any(), key


def test_every_weight_of_experts_is_grouped() -> None:
    letters = {"v": "V", "k": "K", "q": "Q", "o": "y"}
    for name in EPA:
        wanted = [letters[c] for c in name[4:]] if set(name[4:]) <= set("vkqo") and name != "epa" else ["V", "y"]
        assert sorted(kernels(made(name))) == sorted(wanted), name


def test_the_experts_of_sigma_moe_that_are_not_chosen_are_not_computed() -> None:
    module = made("sigma_moe")
    choice, step = (step for step in module.plan.schedule.steps if isinstance(step.op, Kernel))
    assert [choice.op.steps, step.op.steps] == [("G",), ("H.of", "H", "y")]
    assert module.plan.explain().splitlines()[1:] == [
        "  G.of.of: one product",
        "  G.of: dense map",
        "  G: gates and indices of the chosen experts only",
        "  y: grouped experts: rows sorted by expert, only the 2 chosen of 16 computed, also in 'H'",
        "    predicted: 2.01 microseconds instead of 6.41 microseconds",
    ]
    with torch.no_grad():
        module.W1[3:], module.Ws[:, 3:], module.Ws[:, :3] = float("inf"), -9, 9
        assert module(normal(2, 5, 12).abs()).isfinite().all()


def test_a_capture_has_the_gates_of_all_experts() -> None:
    module, x = made("epa"), normal(2, 5, 12)
    gates = module.capture(x, "Gs")
    assert gates.shape == (2, 5, 3, 16)
    assert ((gates != 0).sum(-1) == 2).all()


PATTERN: dict[str, Any] = {
    "tensornet": 1,
    "name": "pattern",
    "legs": {"n": "query", "f": 6, "h": "head 2", "g": "head 2", "e": "head 64", "d": 3, "c": 2},
    "inputs": {"x": "n f"},
    "weights": {},
    "output": "y",
}
BY = {"topk": "e", "k": 2, "of": "x[n f] S[f e] -> n e"}
BY_HEAD = {"topk": "e", "k": 2, "of": "x[n f] S[f h e] -> n h e"}


def pattern(weights: dict[str, str], diagram: dict[str, Any]) -> dict[str, Any]:
    return PATTERN | {"weights": weights, "diagram": diagram} | {"legs": _used(weights, diagram)}


def _used(weights: dict[str, str], diagram: dict[str, Any]) -> dict[str, Any]:
    legs = PATTERN["legs"]
    text = " ".join(weights.values()) + str(diagram)
    return {leg: legs[leg] for leg in legs if leg in ("n", "f") or f"{leg} " in text or f" {leg}" in text}


ONE_EACH = {"S": "f e", "W": "e f d", "U": "d f"}
FORMS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "no heads": (ONE_EACH, {"G": BY, "V": "G[n e] x[n f] W[e f d] -> n d", "y": "V[n d] U[d f] -> n f"}),
    "a factor, other order": (
        ONE_EACH,
        {"G": BY, "V": "(-2) * W[e f d] x[n f] G[n e] -> d n", "y": "V[d n] U[d f] -> n f"},
    ),
    "gates of any sign, chosen by others": (
        ONE_EACH | {"T": "f e"},
        {
            "G": {"topk": "e", "k": 3, "of": "x[n f] S[f e] -> n e", "by": "x[n f] T[f e] -> n e"},
            "V": "G[n e] x[n f] W[e f d] -> n d",
            "y": "V[n d] U[d f] -> n f",
        },
    ),
    "two heads, two own legs": (
        {"S": "f h g e", "W": "g h e f d c", "U": "h g d c f"},
        {
            "G": {"topk": "e", "k": 2, "of": "x[n f] S[f h g e] -> n h g e"},
            "V": "G[n h g e] x[n f] W[g h e f d c] -> n h g d c",
            "y": "V[n h g d c] U[h g d c f] -> n f",
        },
    ),
    "heads share their experts": (
        {"S": "f h e", "P": "f h c", "W": "e c d", "U": "h d f"},
        {
            "G": BY_HEAD,
            "X": "x[n f] P[f h c] -> n h c",
            "V": "G[n h e] X[n h c] W[e c d] -> n h d",
            "y": "V[n h d] U[h d f] -> n f",
        },
    ),
    "no leg of its own": (
        {"S": "f e", "W": "e f", "U": "f"},
        {"G": BY, "v": "G[n e] x[n f] W[e f] -> n", "y": "v[n] U[f] -> n f"},
    ),
    "hidden rows by head": (
        {"S": "f h e", "W": "h e f d", "U": "h e d f"},
        {
            "G": BY_HEAD,
            "H": {"map": "softcap(2)", "of": {"map": "gelu", "of": "3 * x[n f] W[h e f d] -> n h e d"}},
            "y": "G[n h e] H[n h e d] U[h e d f] -> n f",
        },
    ),
    "hidden rows, no map": (
        {"S": "f e", "W": "e f d", "U": "e d f"},
        {"G": BY, "H": "x[n f] W[e f d] -> n e d", "y": "G[n e] H[n e d] U[e d f] -> n f"},
    ),
    "the gates read elsewhere too": (
        ONE_EACH | {"R": "e f"},
        {
            "G": BY,
            "V": "G[n e] x[n f] W[e f d] -> n d",
            "B": {"map": "tanh", "of": "G"},
            "y": "V[n d] U[d f] + B[n e] R[e f] -> n f",
        },
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_other_forms(name: str) -> None:
    same(pattern(*FORMS[name]), normal(2, 5, 6))


HIDDEN = {"S": "f e", "W": "e f d", "U": "e d f"}
REFUSED: dict[str, tuple[dict[str, str], dict[str, Any], tuple[str, ...]]] = {
    "all chosen": (
        ONE_EACH,
        {"G": BY | {"k": 64}, "V": "G[n e] x[n f] W[e f d] -> n d", "y": "V[n d] U[d f] -> n f"},
        ("all 64 experts are chosen",),
    ),
    "not_profitable": (
        ONE_EACH,
        {"G": BY | {"k": 60}, "V": "G[n e] x[n f] W[e f d] -> n d", "y": "V[n d] U[d f] -> n f"},
        ("'V' for the chosen experts only would take 14.1 microseconds instead of 1.35 microseconds",),
    ),
    "a sum": (
        ONE_EACH | {"T": "e f d"},
        {"G": BY, "V": "G[n e] x[n f] W[e f d] + G[n e] x[n f] T[e f d] -> n d", "y": "V[n d] U[d f] -> n f"},
        ("'V' sums 2 products",),
    ),
    "a box reads the gates": (
        ONE_EACH,
        {
            "G": BY,
            "N": {"layernorm": "e", "of": "G"},
            "V": "N[n e] x[n f] W[e f d] -> n d",
            "y": "V[n d] U[d f] -> n f",
        },
        ("'N' is not a product with the gates",),
    ),
    "positions are mixed": (
        ONE_EACH,
        {"G": BY, "V": "G[n e] x[n f] W[e f d] -> d", "y": "V[d] U[d f] x[n f] -> n f"},
        ("'V' mixes the positions on leg 'n', but experts are chosen per position",),
    ),
    "softmax over experts": (
        HIDDEN,
        {"G": BY, "H": {"softmax": "e", "of": "x[n f] W[e f d] -> n e d"}, "y": "G[n e] H[n e d] U[e d f] -> n f"},
        ("'H' on leg 'e' is neither a product with experts nor a map of such a product",),
    ),
    "read without gates": (
        HIDDEN | {"R": "e d f"},
        {
            "G": BY,
            "H": "x[n f] W[e f d] -> n e d",
            "V": "G[n e] H[n e d] U[e d f] -> n f",
            "y": "V[n f] + H[n e d] R[e d f] -> n f",
        },
        ("'H' is needed for every 'e', chosen or not",),
    ),
    "two weights": (
        {"S": "f e", "W": "e f d", "U": "e d f"},
        {"G": BY, "y": "G[n e] x[n f] W[e f d] U[e d f] -> n f"},
        ("'y' has 2 weights on leg 'e' besides the gates",),
    ),
    "the weight alone": (
        {"S": "f e", "W": "e f"},
        {"G": BY, "y": "G[n e] W[e f] -> n f"},
        ("'y' has no tensor besides gates and 'W'",),
    ),
    "no weight": (
        {"S": "f e", "W": "f e"},
        {"G": BY, "w": "x[n f] W[f e] -> n e", "y": "G[n e] w[n e] x[n f] -> n f"},
        ("'y' has no weight on leg 'e' besides the gates",),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_why(name: str) -> None:
    weights, diagram, reasons = REFUSED[name]
    module = made(pattern(weights, diagram))
    assert kernels(module) == []
    regions = {region.name: region.refused for region in module.plan.regions}
    assert [lowering.against for lowering in regions["G"] if lowering.name == "grouped experts"] == [reasons]


@pytest.mark.parametrize("name", ["moa", "moa_sigmoid", "head_gated"])
def test_attention_is_that_of_the_chosen_heads(name: str) -> None:
    lines = make_plan(build(ta.load(name))).explain()
    assert "also in 'A' for the queries that chose each head" in lines
    assert "  G: gates and indices of the chosen experts only\n" in lines


@pytest.mark.parametrize("mask", ["causal", "causal and window(1, 0)"])
def test_rows_of_every_head_behind_a_map(mask: str) -> None:
    """In a band attention is of all heads: what a map then makes of their values has rows of every head."""
    source = {
        "tensornet": 1,
        "name": "mapped",
        "extends": "mhsa",
        "causal": True,
        "legs": {"f": 3, "h": "head 2", "d": 2},
        "weights": {"R": "f h"},
        "inputs": {"memory": None},
        "diagram": {
            "K": "x[m f] Wk[f h d] -> m h d",
            "V": "x[m f] Wv[f h d] -> m h d",
            "A": {"softmax": "m", "mask": mask, "of": "Q[n h d] K[m h d] -> h n m"},
            "o": {"map": "silu", "of": "A[h n m] V[m h d] -> n h d"},
            "G": {"topk": "h", "k": 1, "of": {"softmax": "h", "of": "x[n f] R[f h] -> n h"}},
            "y": "G[n h] o[n h d] Wo[h d f] -> n f",
        },
    }
    fast, plain = twins(source, n=4096)
    assert kernels(fast) == ["y"] * (mask == "causal")
    same_outcome(fast, plain, [normal(2, 9, 3)])


def test_a_product_in_a_sum() -> None:
    weights = ONE_EACH | {"T": "f d"}
    steps = {"G": BY, "V": "G[n e] x[n f] W[e f d] + x[n f] T[f d] -> n d", "y": "V[n d] U[d f] -> n f"}
    same(pattern(weights, steps), normal(2, 5, 6))


@pytest.mark.parametrize("name", ["epa", "epa_vkqo", "epa_rope", "epa_xl", "sigma_moe"])
def test_at_the_sizes_of_the_file_experts_are_grouped(name: str) -> None:
    assert made_by(make_plan(build(ta.load(name))))


@pytest.mark.parametrize("name", ["epa", "epa_kqo", "epa_o", "epa_xl"])
def test_what_a_kernel_leaves_of_a_product_is_planned_as_one(name: str) -> None:
    """y = A V Wo G: beside kernels for y.p1 = A V, the rest is a product with chosen experts, as it is without them."""
    plan = make_plan(build(ta.load(name)), "triton")
    steps = {step.name: step.op for step in plan.schedule.steps}
    assert len(steps) == len(plan.schedule.steps)
    assert [op.kind for op in (steps["y.p1"], steps["y"]) if isinstance(op, Kernel)] == ["tiles", "experts"]


def test_kernels_that_choose_compute_the_choice_and_its_gates() -> None:
    plan = make_plan(build(ta.load("epa_vk")), "triton")
    inside = {step.name: step.op.steps for step in plan.schedule.steps if step.name in made_by(plan)}  # type: ignore[union-attr]
    assert inside == {"V": ("Gs.of", "Gs", "V"), "K": ("Gs.of", "Gs", "K")}
    assert "Gs" not in plan.schedule.step


def test_a_kernel_that_gathers_is_cheaper() -> None:
    """On a fast GPU the rows that plain functions copy would take as long as all experts."""
    design = build(ta.load("epa_v"))
    target = target_from(torch.bfloat16, device_costs="h200-bfloat16", n=4096)
    taken = {backend: "V" in made_by(make_plan(design, backend, target)) for backend in ("torch", "triton")}
    assert taken == {"torch": False, "triton": True}


def made_by(plan: Plan) -> list[str]:
    """The products with chosen experts of a plan."""
    steps = [step for step in plan.schedule.steps if isinstance(step.op, Kernel) and step.op.kind == "experts"]
    return [step.name for step in steps if isinstance(step.op.body[-1].op, Contraction)]
