"""The matching rule: the largest multiple at which a design has no more parameters, and what is refused."""

from __future__ import annotations

import pytest

import tensornet_attn as ta
from tensornet_attn import limits
from tensornet_attn.cost.sizes import largest_size, parameters
from tensornet_attn.errors import DesignError
from tests.refusals import refusal


@pytest.mark.parametrize("multiple", [1, 3, 4, 7])
@pytest.mark.parametrize("most", [17, 100, 1003, 99_999])
def test_the_largest_multiple_by_trying_all(multiple, most):
    def size(d):
        return 10 * d - 53 + d * d // 9

    fits = [d for d in range(multiple, 3000, multiple) if size(d) <= most]
    if fits:
        assert largest_size(size, most, "mine", "d", multiple) == fits[-1]


def test_equal_parameters_fit():
    assert ta.match_parameters("mhsa", "mhsa") == 64
    assert ta.match_parameters("mhsa", "mhsa", multiple=3) == 63
    assert ta.match_parameters("mhsa", "mhsa", leg="f", multiple=8) == 512


def test_frozen_weights_and_constants_do_not_count():
    design = ta.load("mhsa").as_dict()
    frozen = design | {"name": "half", "weights": design["weights"] | {"Wv": {"legs": "f h d", "frozen": True}}}
    assert parameters(ta.build(ta.load(frozen))) == 3 * 512 * 512
    assert ta.match_parameters(frozen, "mhsa") == 84  # 4 / 3 of 64 is 85.3


def test_sources_of_all_kinds(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text("tensornet: 1\nname: small\nextends: mhsa\nlegs:\n  d: 16\n")
    assert ta.match_parameters(str(path), {"tensornet": 1, "name": "like", "extends": "mhsa"}) == 64
    assert ta.match_parameters("mhsa", str(path)) == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mhsa", "mhsa", "dd"), "there is no leg 'dd' in 'mhsa': did you mean 'd'?"),
        (("mhsa", "mhsa", "q"), "there is no leg 'q' in 'mhsa': known here: d, f, h, m, n."),
        (
            ("mhsa", "mhsa", "h"),  # d is f / h
            "the parameters of 'mhsa' do not grow with leg 'h'; choose another leg.",
        ),
        (
            ("mhsa", {"tensornet": 1, "name": "tiny", "extends": "mhsa", "legs": {"d": 3}}),
            "'mhsa' already has 65,536 parameters at d = 4, more than 49,152.",
        ),
        (("mhsa", "mhsa", "d", 0), "'multiple' is 0; give an integer from 1 to 2147483647, e.g. multiple=1."),
    ],
)
def test_refusals(arguments, message):
    assert refusal(ta.match_parameters, *arguments) == message


def test_a_leg_that_stops_mattering_is_refused():
    assert refusal(largest_size, lambda d: min(d, 100), 1000, "mine", "d", 4) == (
        f"'mine' stays below 1,000 parameters up to d = {limits.SIZE}, the largest size."
    )


def test_a_size_that_makes_no_design_is_told():
    with pytest.raises(DesignError) as raised:
        ta.match_parameters("mhsa", "mhsa", "n")
    assert "leg 'n' is sized by the input at run time" in str(raised.value)
