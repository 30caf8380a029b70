"""Costs over sizes: each point is what `ta.cost` gives, sizes reach the designs that have them, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import tensornet_attn as ta
from tensornet_attn.cli.cost import sweep
from tensornet_attn.cost.sweep import MEASURES, POINTS, Sweep
from tensornet_attn.errors import DesignError
from tests.refusals import refusal

ALL = tuple(MEASURES)
RATIOS = Sweep(
    ("hard_fish",), {"f": (64, 128), "n": (32, 64)}, ALL, against="mhsa", beside=("mlp",), legs={"g": 2, "l": 96}
)


def point(found, **sizes):
    (only,) = [p for p in found.points if p.sizes == sizes]
    return only


def test_each_point_is_the_cost_of_the_designs_at_its_sizes():
    found = sweep(RATIOS)
    assert [dict(p.sizes) for p in found.points] == [{"f": f, "n": n} for f in (64, 128) for n in (32, 64)]
    own = ta.cost(ta.load("hard_fish", legs={"f": 128, "g": 2}), n=64)
    other = ta.cost(ta.load("mhsa", legs={"f": 128}), n=64)
    beside = ta.cost(ta.load("mlp", legs={"f": 128, "l": 96}), n=64)
    one = point(found, f=128, n=64)
    for measure, of in {
        "macs": lambda report: report.macs,
        "routed": lambda report: report.best.total.routed_macs,
        "parameters": lambda report: report.parameters,
        "saved": lambda report: report.best.total.saved_floats,
    }.items():
        assert one.values[measure] == of(own) + of(beside)
        assert one.against[measure] == of(other) + of(beside)
        assert one.ratio(measure) == (of(own) + of(beside)) / (of(other) + of(beside))
    assert one.values["training"] == 3 * one.values["macs"] + 2 * 2 * 64 * 128  # and the gradients of P[g h] Q[n g d]


def test_the_peak_of_layers_one_after_the_other_has_the_weights_of_all():
    one = point(sweep(RATIOS), f=64, n=32)
    reports = [
        ta.cost(ta.load("hard_fish", legs={"f": 64, "g": 2}), n=32),
        ta.cost(ta.load("mlp", legs={"f": 64, "l": 96}), n=32),
    ]
    weights = [4 * report.parameters for report in reports]
    activations = [r.best.total.live_bytes - w for r, w in zip(reports, weights, strict=True)]
    assert one.values["peak"] == max(activations) + sum(weights)


def test_orders_of_products():
    """Left to right, hard_fish mixes the queries of each local head; planned and fewest do less."""
    counts = {
        order: sweep(replace(RATIOS, order=order, axes={"n": (64,)}, measures=("macs",))).points[0].values["macs"]
        for order in ("written", "planned", "fewest")
    }
    assert counts["fewest"] == counts["planned"] < counts["written"]
    design = ta.load("hard_fish", legs={"g": 2})
    beside = ta.cost(ta.load("mlp", legs={"l": 96}), n=64).macs
    assert counts["written"] == ta.cost(design, n=64).written.macs + beside


def test_sizes_of_the_other_design_are_its_own_and_may_be_arithmetic():
    asked = Sweep(("mgk",), {"h": (1, 2)}, ("parameters",), against="mhsa", against_legs={"h": "2 * h"}, legs={"d": 8})
    found = sweep(asked)
    for h in (1, 2):
        one = point(found, h=h)
        assert one.values["parameters"] == ta.cost(ta.load("mgk", legs={"h": h, "d": 8})).parameters
        assert one.against["parameters"] == ta.cost(ta.load("mhsa", legs={"h": 2 * h, "d": 8})).parameters


def test_settings_reach_the_designs_that_have_them():
    found = sweep(Sweep(("band",), {"n": (64,)}, ("macs",), against="mhsa", settings={"k": 3}))
    assert found.points[0].values["macs"] == ta.cost(ta.load("band", settings={"k": 3}), n=64).macs


def test_without_another_design_values_are_shown():
    found = sweep(Sweep(("mhsa", "mqa"), {"n": (64, 128)}, ("parameters",)))
    assert [p.displayed("parameters") for p in found.points] == [1_048_576] * 2 + [589_824] * 2
    assert [*found.series()] == ["mhsa", "mqa"]
    assert all(p.ratio("parameters") is None for p in found.points)


def test_a_ratio_to_nothing_is_none():
    design = {
        "tensornet": 1,
        "name": "nothing",
        "legs": {"n": "query", "f": 8},
        "inputs": {"x": "n f"},
        "diagram": {"y": "2 * x[n f] -> n f"},
        "output": "y",
    }
    text = json.dumps(design) + "\n"
    found = sweep(Sweep(("mlp",), {"n": (4,)}, ("parameters",), against=text))
    assert found.points[0].displayed("parameters") is None
    assert found.to_text().splitlines()[-1].split() == ["mlp", "-"]


TEXT = """\
hard_fish against mhsa, beside mlp: g = 2, l = 96; batch 1, float32, as planned

macs: multiply-adds of a forward pass, divided by those of mhsa
f =        64    128
n = 32  0.938  0.833
n = 64  1.056  0.923

parameters: trainable parameters, divided by those of mhsa
f =        64    128
n = 32  0.787  0.728
n = 64  0.787  0.728
"""


def test_a_length_among_the_legs_is_that_length():
    asked = Sweep(("mhsa",), {"f": (64,)}, ("macs",))
    for lengths in ({"n": 64}, {"m": 32}):
        assert sweep(replace(asked, legs=lengths)).points == sweep(replace(asked, **lengths)).points


def test_to_text():
    assert sweep(replace(RATIOS, measures=("macs", "parameters"))).to_text() == TEXT


def test_as_dict_is_json():
    found = json.loads(json.dumps(sweep(RATIOS).as_dict()))
    assert {key: value for key, value in found.items() if key not in ("points", "measures")} == {
        "designs": ["hard_fish"],
        "against": "mhsa",
        "beside": ["mlp"],
        "axes": {"f": [64, 128], "n": [32, 64]},
        "legs": {"g": 2, "l": 96},
        "against_legs": {},
        "settings": {},
        "batch": 1,
        "dtype": "float32",
        "order": "planned",
    }
    assert [*found["measures"]] == [*ALL]
    first = found["points"][0]
    assert (first["design"], first["sizes"]) == ("hard_fish", {"f": 64, "n": 32})
    assert first["ratios"]["macs"] == first["values"]["macs"] / first["against"]["macs"]


REFUSED = [
    ({"measures": ("flops", "macs")}, "there is no measure 'flops': "
     "known here: macs, parameters, peak, routed, saved, training."),
    ({"order": "plan"}, "there is no order 'plan': did you mean 'planned'?"),
    ({"axes": {"ff": (64,)}}, "no design here has a leg 'ff': did you mean 'f'?"),
    ({"legs": {"heads": 2}}, "no design here has a leg 'heads': known here: d, f, g, h, l, m, n."),
    ({"settings": {"k": 2}}, "no design here has a setting 'k': none is declared."),
    ({"against": None, "against_legs": {"h": 2}},
     "sizes of another design are given, but no other design; name it with --against."),
    ({"against_legs": {"h": "2 * heads"}},
     "the size of 'h' of the other design, '2 * heads', has the unknown name 'heads': known here: f, g, l, n."),
    ({"against_legs": {"h": "f / 3"}},
     "the size of 'h' of the other design, 'f / 3', is 21.333333333333332, but must be an integer."),
    ({"against_legs": {"heads": 2}}, "the other design has no leg 'heads': known here: d, f, h, m, n."),
    ({"axes": {"g": (1, 2)}}, "'g' has a fixed size and several sizes; give it only once, several with --over."),
    ({"m": 64, "legs": {"m": 32}}, "'m' has two sizes; give it only once."),
    ({"n": 64}, "'n' has a fixed size and several sizes; give it only once, several with --over."),
    ({"against_legs": {"h": "f / 0"}}, "the size of 'h' of the other design, 'f / 0': 'f / 0' divides by zero."),
    ({"axes": {"n": tuple(range(1, POINTS + 2))}},
     "these sizes make 10,001 points, more than 10,000; give fewer sizes."),
    ({"axes": {"n": (0,)}}, "'n' is 0; give an integer from 1 to 2147483647, e.g. n=1."),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_refused(change, message):
    assert refusal(sweep, replace(RATIOS, **change)) == message


def test_a_size_that_does_not_fit_is_a_design_error():
    with pytest.raises(DesignError) as raised:
        sweep(replace(RATIOS, axes={"f": (60,)}))
    assert "leg 'd' is f / h = 7.5, which is not a valid size." in str(raised.value)
