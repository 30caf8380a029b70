"""Which softmax boxes are computed in blocks along their band, why others are not, and that the result is the same."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.agreement import same_outcome

from .test_linear import check_refusal, draw, modules, same_with_masks

WEIGHTS = {
    "Wq": "f h d", "Wk": "f h d", "Wv": "f h e", "Wo": "h e f", "Wg": "f g h d", "Ws": "f d", "Wt": "f e",
    "Wp": "f g d", "Wr": "f g e", "Wy": "g h e f", "u": "d",
}  # fmt: skip
SIZES = {"f": 4, "g": "head 2", "h": "head 3", "d": "head 5", "e": 2}
QUERY = {"Q": "x[n f] Wq[f h d] -> n h d"}
KEY = {"K": "z[m f] Wk[f h d] -> m h d", "V": "z[m f] Wv[f h e] -> m h e"}
GROUPED = {"Q": "x[n f] Wg[f g h d] -> n g h d", "K": "z[m f] Wp[f g d] -> m g d", "V": "z[m f] Wr[f g e] -> m g e"}
SCORES, READ = "Q[n h d] K[m h d] -> h n m", "A[h n m] V[m h e] Wo[h e f] -> n f"
WINDOW = ["window(4, 1)"]


def design(mask: list[str], of: str = SCORES, read: str = READ, steps: dict[str, Any] | None = None, **box: Any) -> Any:
    steps = {**(steps or QUERY | KEY), "A": {"softmax": "m", "mask": mask, "of": of, **box}, "y": read}
    weights = {name: legs for name, legs in WEIGHTS.items() if f"{name}[" in str(steps)}
    sizes = {leg: size for leg, size in SIZES.items() if any(leg in legs.split() for legs in weights.values())}
    return {
        "tensornet": 1,
        "name": "one",
        "legs": {"n": "query", "m": "key"} | sizes,
        "inputs": {"x": "n f", "z": "m f"},
        "weights": weights,
        "settings": {"w": 3} if "w" in str(mask).replace("window", "") else {},
        "diagram": steps,
        "output": "y",
    }


BANDED: dict[str, Any] = {
    "a band": design(["band(2)"]),
    "a window of a setting": design(["window(2 * w, w - 3)"], scale="d ** -0.5"),
    "several masks": design(["causal", "window(5, 5)", "band(3)"]),
    "keys ahead alone": design(["window(-1, 3)"]),
    "one head": design(WINDOW, "Q[n d] K[m d] -> n m", "A[n m] V[m e] Wt[f e] -> n f", {
        "Q": "x[n f] Ws[f d] -> n d", "K": "z[m f] Ws[f d] -> m d", "V": "z[m f] Wt[f e] -> m e",
    }),
    "shared keys": design(WINDOW, "Q[n g h d] K[m g d] -> g h n m", "A[g h n m] V[m g e] Wy[g h e f] -> n f", GROUPED),
    "a coefficient and a scale": design(WINDOW, f"0.5 * {SCORES}", scale=0.5),
}  # fmt: skip
REFUSED: dict[str, tuple[Any, str | None]] = {  # the reason; None where rewriting makes it fit after all
    "nothing seen": (design(["window(4, -2)", "window(-3, 4)"]), "its masks together hide every key"),
    "too wide": (
        design(["window(900, 0)"]),
        "blocks of 256 queries would read 1,156 keys each and take ",
    ),
    "scores of three": (design(WINDOW, SCORES.replace("->", "u[d] ->")), None),
    "map used twice": (design(WINDOW, read=READ.replace("->", "+ A[h n m] V[m h e] Wo[h e f] ->")), None),
}


CHOSEN, REASON = "A.o: banded attention: blocks of ", "\n    not banded attention: "


@pytest.mark.parametrize("causal", [None, True])
@pytest.mark.parametrize("name", BANDED)
def test_blocks_and_the_result_is_the_same(name: str, causal: bool | None) -> None:
    ours, oracle = modules(BANDED[name], causal)
    if name == "keys ahead alone" and causal:
        assert f"{REASON}its masks together hide every key" in ours.explain()
        return
    assert CHOSEN in ours.explain()
    heads = [ours.design.legs[leg] for leg in ours.plan.graph.step["A"].legs if leg not in ("n", "m")]
    for (n, m), batch in itertools.product([(5, 5), (40, 40), (3, 6), (6, 3), (1, 1)], [(), (2,), (0,)]):
        same_with_masks(ours, oracle, n, m, batch, draw(*batch, *heads, n, m, seed=4))
        inputs = [draw(*batch, n, 4), draw(*batch, m, 4, seed=1)]
        same_outcome(ours, oracle, inputs, key_mask=torch.zeros(*batch, m, dtype=torch.bool))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason_and_still_right(name: str) -> None:
    check_refusal(*REFUSED[name], None, CHOSEN, "banded attention")


@pytest.mark.parametrize("name", ["mhsa", "linear"])
def test_without_a_band_there_is_nothing_to_say(name: str) -> None:
    assert "banded attention" not in ta.compile(name, causal=True, device_costs="generic").explain()


def test_few_keys_are_met_by_all_queries_at_once() -> None:
    assert CHOSEN in ta.compile("band", n=128, device_costs="generic").explain()
    told = ta.compile("band", n=64, device_costs="generic").explain()
    assert f"{REASON}blocks of 32 queries would read 36 keys each and take " in told
    assert " times as long at the rates of cpu\n" in told


@pytest.mark.parametrize("name", ["gemma3_local", "mistral"])
def test_one_query_does_not_fill_blocks(name: str) -> None:
    """Blocks of 256 queries would compute 512 rows for it."""
    told = ta.explain(name, workload="decoding")
    assert CHOSEN not in told
    assert f"{REASON}blocks of 256 queries would read " in told


def test_the_plan_tells_block_and_span() -> None:
    told = "banded attention: blocks of 32 queries read 36 keys each; other scores are never computed"
    assert told in ta.compile("band", device_costs="generic").explain()


def test_a_band_of_which_a_blend_is_made_is_lowered_too() -> None:
    told = ta.compile("fmm1", device_costs="generic").explain()
    assert ": banded attention: blocks of " in told
    assert ": linear attention: the keys are summed first" in told
