"""What a call refuses: messages that name the input, the leg and both sizes."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tests.designs.cases import BACKENDS, compiled
from tests.refusals import refusal

F64, BOOL = torch.float64, torch.bool


def refused(name: str, *inputs: object, backend: str = "torch", **options: object) -> str:
    return refusal(lambda: compiled(name, backend)(*inputs, **options))


def x(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=F64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs(backend: str) -> None:
    cases = {
        "mhsa: 0 inputs given; give x, memory (default x).": (),
        "mhsa: 3 inputs given; give x, memory (default x).": (x(2, 5, 12), x(2, 5, 12), x(2, 5, 12)),
        "mhsa: input 'x' is a list; give a tensor.": ([1.0],),
        "mhsa: input 'x' is a NoneType; give a tensor.": (None,),
        "mhsa: input 'x' is torch.int64; give floating point numbers.": (torch.zeros(5, 12, dtype=torch.int64),),
        "mhsa: input 'x' has 1 dimensions; give [batch..., n f], at least 2.": (x(12),),
        "mhsa: input 'x' has size 11 on leg 'f', which is 12; its shape is [batch..., n f].": (x(2, 5, 11),),
    }
    assert {refused("mhsa", *inputs, backend=backend): inputs for inputs in cases.values()}.keys() == cases.keys()
    assert refused("mlp", x(2, 5, 6), x(2, 5, 6), backend=backend) == "mlp: 2 inputs given; give x."


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_with_a_default_is_checked_like_any_other(backend: str) -> None:
    value = x(2, 5, 12)
    cases = {
        "mhsa: input 'memory' is a list; give a tensor.": [1.0],
        "mhsa: input 'memory' is torch.bool; give floating point numbers.": torch.ones(5, 5, dtype=BOOL),
        "mhsa: input 'memory' has 1 dimensions; give [batch..., m f], at least 2.": x(12),
        "mhsa: input 'memory' has size 11 on leg 'f', which is 12; its shape is [batch..., m f].": x(2, 7, 11),
        "mhsa: input 'memory' has batch dimensions [3], the inputs before it have [2]; they must broadcast.": x(
            3, 7, 12
        ),
    }
    assert [refused("mhsa", value, memory, backend=backend) for memory in cases.values()] == list(cases)
    assert [refused("mhsa", value, memory=memory, backend=backend) for memory in cases.values()] == list(cases)
    for memory in (None, x(7, 12), x(2, 7, 12), x(4, 2, 7, 12)):
        batch = () if memory is None else memory.shape[:-3]
        assert compiled("mhsa", backend)(value, memory).shape == (*batch, 2, 5, 12)
    memory = x(2, 7, 12)
    assert refused("mhsa", value, memory, mask=torch.ones(5, 5, dtype=BOOL), backend=backend) == (
        "mhsa: mask has shape [5, 5]; its last two dimensions must be 'n' 5 and 'm' 7."
    )
    assert refused("mhsa", value, memory, key_mask=torch.ones(2, 5, dtype=BOOL), backend=backend) == (
        "mhsa: key_mask has shape [2, 5]; its last dimension must be 'm' 7."
    )
    assert refused("mhsa", memory=memory, backend=backend) == (
        "mhsa: input 'x' is missing; give x, memory (default x)."
    )


def test_inputs_by_name() -> None:
    module, value, memory = compiled("transformer_xl", "torch"), torch.randn(2, 5, 12, dtype=F64), x(2, 7, 12)
    torch.testing.assert_close(module(value, memory=memory), module(value, memory))
    torch.testing.assert_close(module(memory=memory, x=value), module(value, memory))
    torch.testing.assert_close(module(x=value), module(value))
    assert module.capture(value, "A", memory=memory).shape[-2:] == (5, 7)
    assert refused("transformer_xl", value, memry=memory) == (
        "transformer_xl: there is no input 'memry'; did you mean 'memory'?"
    )
    assert refused("transformer_xl", value, x=value) == (
        "transformer_xl: input 'x' is given twice, by position and by name."
    )
    assert refused("transformer_xl", memory=memory) == (
        "transformer_xl: input 'x' is missing; give x, memory (default x)."
    )


def test_several_inputs() -> None:
    assert refused("cross", x(5, 12)) == "cross: 1 inputs given; give x, memory."
    assert refused("cross", x(2, 5, 12), x(3, 5, 12)) == (
        "cross: input 'memory' has batch dimensions [3], the inputs before it have [2]; they must broadcast."
    )
    assert compiled("cross", "torch")(x(2, 1, 5, 12), x(3, 4, 12)).shape == (2, 3, 5, 12)
    assert compiled("transformer_xl", "torch")(x(5, 12), None).shape == (5, 12)


LENGTHS = {
    "tensornet": 1,
    "name": "lengths",
    "legs": {"n": "query 6", "m": "key 7", "f": 3, "g": "f"},
    "inputs": {"x": "n f", "y": "n g", "z": "m f"},
    "weights": {"b": "n m"},
    "diagram": {"A": {"softmax": "m", "of": "x[n f] z[m f] + b[n m] -> n m"}, "o": "A[n m] z[m f] + y[n f] -> n f"},
    "output": "o",
}


def test_lengths() -> None:
    module = ta.compile(LENGTHS, "torch", dtype=F64)
    assert module(x(4, 3), x(4, 3), x(7, 3)).shape == (4, 3)
    cases = {
        "lengths: input 'y' has length 5 on leg 'n', input 'x' has 4.": (x(4, 3), x(5, 3), x(7, 3)),
        "lengths: length 8 on leg 'm' exceeds its maximum 7.": (x(4, 3), x(4, 3), x(8, 3)),
    }
    for message, inputs in cases.items():
        assert refusal(module, *inputs) == message


def test_one_length_where_an_input_stands_on_both_legs() -> None:
    tied = LENGTHS | {"name": "tied", "inputs": {"x": "n f", "z": "m f", "w": "n f"}}
    tied["diagram"] = {"A": {"softmax": "m", "of": "x[m f] z[m f] b[n m] w[n f] -> n m"}, "o": "A[n m] z[m f] -> n f"}
    tied["legs"] = LENGTHS["legs"] | {"f": "head 3"}
    del tied["legs"]["g"]
    assert refusal(lambda: ta.compile(tied, "torch", dtype=F64)(x(4, 3), x(5, 3), x(4, 3))) == (
        "tied: legs 'n' and 'm' have the same length in this design; input 'w' has 4 on 'n', input 'z' has 5 on 'm'."
    )


def test_masks() -> None:
    value = x(2, 5, 12)
    forms = "give [n, m] or [batch..., n, m] or [batch..., h, n, m]."
    cases = {
        "mhsa: mask is torch.int64; give a boolean (True = visible) or a float (added).": torch.zeros(5, 5, dtype=int),
        "mhsa: mask has shape [4, 5]; its last two dimensions must be 'n' 5 and 'm' 5.": torch.ones(4, 5, dtype=BOOL),
        "mhsa: mask has shape [5]; its last two dimensions must be 'n' 5 and 'm' 5.": torch.ones(5, dtype=BOOL),
        f"mhsa: mask has 5 dimensions with 1 of the batch; {forms}": torch.ones(1, 1, 1, 5, 5, dtype=BOOL),
        "mhsa: mask has shape [3, 5, 5]: 3 on 'batch', which is 2.": torch.ones(3, 5, 5, dtype=BOOL),
        "mhsa: mask has shape [2, 4, 5, 5]: 4 on 'h', which is 3.": torch.ones(2, 4, 5, 5, dtype=BOOL),
        "mhsa: mask is a list; give a tensor.": [[True]],
    }
    assert [refused("mhsa", value, mask=mask) for mask in cases.values()] == list(cases)
    assert compiled("mhsa", "torch")(value, mask=torch.ones(1, 3, 5, 5, dtype=BOOL)).shape == (2, 5, 12)


def test_masks_where_they_do_not_act() -> None:
    value, mask = x(2, 5, 12), torch.ones(5, 5, dtype=BOOL)
    assert refused("linear", value, mask=mask.double()) == (
        "linear: a float mask cannot be added in 'A', a normalize box; give a boolean one."
    )
    assert refused("fmm_fast_weight1", value, mask=mask) == (
        "fmm_fast_weight1: the delta rule 'far' accepts no mask; give a key_mask."
    )
    assert refused("mlp", x(2, 5, 6), mask=mask) == "mlp: mask: no box of this design has both a query and a key leg."
    assert refused("mlp", x(2, 5, 6), key_mask=mask) == (
        "mlp: key_mask: no box of this design runs over a key leg, and no product sums one."
    )


def test_key_masks() -> None:
    value = x(2, 5, 12)
    cases = {
        "mhsa: key_mask is torch.float32; give a boolean one, True = visible.": torch.ones(2, 5),
        "mhsa: key_mask has shape [2, 4]; its last dimension must be 'm' 5.": torch.ones(2, 4, dtype=BOOL),
        "mhsa: key_mask has shape [3, 5]; the batch is [2].": torch.ones(3, 5, dtype=BOOL),
        "mhsa: key_mask is a list; give a tensor.": [True],
    }
    assert [refused("mhsa", value, key_mask=mask) for mask in cases.values()] == list(cases)


def test_noise() -> None:
    value = x(2, 5, 12)
    cases = {
        "fish: noise 'eps' has shape [5, 5]; give [batch..., h, n, m].": {"eps": x(5, 5)},
        "fish: noise 'eps' has size 4 on leg 'h', which is 3; give [batch..., h, n, m].": {"eps": x(2, 4, 5, 5)},
        "fish: noise 'eps' has size 6 on leg 'm', which is 5; give [batch..., h, n, m].": {"eps": x(2, 3, 5, 6)},
        "fish: noise 'eps' has shape [3, 3, 5, 5]; the batch is [2].": {"eps": x(3, 3, 5, 5)},
        "fish: noise 'eps' is a float; give a tensor.": {"eps": 1.0},
    }
    assert [refused("fish", value, noise=noise) for noise in cases.values()] == list(cases)
    assert refused("fish", value, noise={"epsilon": x(1)}).startswith("fish: there is no noise 'epsilon'; ")
