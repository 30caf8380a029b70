"""What boxes save against what autograd keeps of the same operations of torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tensornet_attn.ops import OPS
from tests.memory import kept

ROWS, WIDTH = 6, 5
OPERATIONS = [  # rule, operation of torch on [ROWS, WIDTH]
    (OPS["softmax"].saves, lambda x: x.softmax(-1)),
    (OPS["logsumexp"].saves, lambda x: x.logsumexp(-1)),
    (OPS["max"].saves, lambda x: x.amax(-1)),
    (OPS["sum"].saves, lambda x: x.sum(-1)),
    (OPS["mean"].saves, lambda x: x.mean(-1)),
    (OPS["normalize"].saves, lambda x: x / x.sum(-1, keepdim=True)),
    (OPS["layernorm"].saves, lambda x: functional.layer_norm(x, (WIDTH,))),
    *((("result",), function) for function in (torch.exp, torch.tanh, torch.sigmoid, torch.sqrt, torch.relu)),
    (("result",), lambda x: 30 * torch.tanh(x / 30)),
    *(
        (("of",), function)
        for function in (functional.gelu, functional.silu, torch.log, torch.square, torch.abs, functional.softplus)
    ),
]


@pytest.mark.parametrize("at", range(len(OPERATIONS)))
def test_saved_floats_of_a_box_are_those_that_autograd_keeps(at):
    rule, operation = OPERATIONS[at]
    x = torch.rand(ROWS, WIDTH, requires_grad=True)
    reduces = operation(x).ndim == 1
    floats = {"of": ROWS * WIDTH, "row": ROWS, "result": ROWS if reduces else ROWS * WIDTH}
    assert kept(lambda: operation(x)) // 4 == sum(floats[part] for part in rule)
