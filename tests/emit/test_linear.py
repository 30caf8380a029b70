"""How linear attention reads in emitted code."""

from __future__ import annotations

import tensornet_attn as ta
from tests.plan.linear_cases import LINEAR

from .test_source import forward_of


def test_linear_reads_as_one_would_write_it() -> None:
    assert forward_of(ta.emit_source("linear", package=True)).splitlines()[-9:] == [
        "    # A and A V: sums over m first; no n by m tensor is formed",
        "    q = Q.transpose(-3, -2)  # ... h n d",
        "    k = K.transpose(-3, -2)  # ... h m d",
        "    v = V.transpose(-3, -2)  # ... h m d",
        "    o = linear_attention(",
        "        [Term(q, k)], v, mask, key_mask, max(x.ndim, memory.ndim) - 2, 1, maps=(elu1, elu1)",
        "    )  # ... h n d",
        "",
        "    return projected(o.transpose(-3, -2).flatten(-2), self.Wo.flatten(0, 1))  # ... n f",
    ]


def test_mixed_heads_and_a_bias() -> None:
    assert forward_of(ta.emit_source("kernel_gfish", causal=True, package=True)).splitlines()[-15:-2] == [
        "    A_c1 = mixture @ mixture2.transpose(-2, -1)  # g h",
        "",
        "    # A and A V: sums over m first; no n by m tensor is formed",
        "    q = phiQ.flatten(-2)  # ... n (g d)",
        "    k = phiK.flatten(-2)  # ... m (g d)",
        "    q_2 = x.new_ones(n, 1)  # n 1",
        "    k_2 = x.new_ones(m, 1)  # m 1",
        "    core = bias2.unsqueeze(-2)  # 1 h",
        "    v = V.flatten(-2)  # ... m (h d)",
        "    o = linear_attention(",
        "        [Term(q, k, core=A_c1), Term(q_2, k_2, core=core)], v, mask, key_mask, "
        "max(x.ndim, memory.ndim) - 2, 0,",
        "        causal=True, chunk=128,",
        "    ).unflatten(-1, (self.Wv.shape[1], self.Wq.shape[2]))  # ... n h d",
    ]


def test_a_mask_that_names_heads_follows_their_order() -> None:
    lines = forward_of(ta.emit_source(LINEAR["mixed into two legs"], package=True)).splitlines()
    assert any("heads_together(mask, max(x.ndim, z.ndim) - 2, (0, 1,), 2)" in line for line in lines)


def test_eps_and_keep_are_told() -> None:
    assert ", eps=0.5)" in ta.emit_source(LINEAR["scaled, with eps"], package=True)
    assert ", normalize=False)" in ta.emit_source(LINEAR["kept"], package=True)


def test_a_sum_of_maps_is_one_call() -> None:
    lines = forward_of(ta.emit_source("linear2", package=True)).splitlines()
    (place,) = [i for i, line in enumerate(lines) if "linear_attentions(" in line]
    assert lines[place - 4 : place + 3] == [
        "    # the sum of far1, far2 times V: sums over m first; no n by m tensor is formed",
        "    q = Q.transpose(-3, -2)  # ... h n d",
        "    k = K.transpose(-3, -2)  # ... h m d",
        "    v = V.transpose(-3, -2)  # ... h m d",
        "    A_V = linear_attentions(",
        "        [LinearKernel(q, k, elu1, elu1, 0), LinearKernel(q, k, elu1_neg, elu1_neg, 0)], v, mask, key_mask,",
        "        max(x.ndim, memory.ndim) - 2, 1,",
    ]
    assert "phiQ" not in "\n".join(lines)


def test_a_map_that_others_read_stays() -> None:
    assert "phiQ = elu1(" in forward_of(ta.emit_source("linear", causal=True, package=True))
