"""How blocks of queries read in emitted code."""

from __future__ import annotations

import tensornet_attn as ta
from tests.plan.blockwise_cases import TAKEN

from .test_source import forward_of


def tile_of(source: str) -> str:
    """The function of a block, from its decorator on."""
    return source[source.index("@block_function(") :].rstrip()


def test_a_core_is_folded_into_the_query_of_a_block() -> None:
    source = ta.emit_source("thsa", package=True)
    assert forward_of(source).splitlines()[-7:] == [
        "    # A.of.p1, A.of, A, y.p1: blockwise, recomputed in the backward",
        "    y_1 = blockwise(",
        "        y_1_rows, [self.C, Q.transpose(-2, -1), K, V.transpose(-2, -1), mask, key_mask], n, m,",
        "        (*joint_shape(x.shape[:-2], memory.shape[:-2]),), (16, 2048, 512), sizes=(self.C.shape[0],),",
        "    )  # ... r n",
        "",
        "    return projected(y_1.transpose(-2, -1), self.Wo)  # ... n f",
    ]
    forward, backward = tile_of(source).split("\n\n\n")
    assert forward.splitlines() == [
        "@block_function(rows=(0, -1, 0, 0, -2, 0), out=-1, legs=(0, 2, 2, 2, -1, 1))",
        "def y_1_rows(",
        "    rows: Rows, C: Tensor, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None, key_mask: Tensor | None",
        ") -> Tensor:",
        '    """A.of.p1, A.of, A, y.p1 for a block of rows: C [r s], Q [s n], K [m s], V [r m] -> [r n]."""',
        "    (r,) = rows.sizes",
        "    Q_k = r ** -0.5 * Q  # ... s n",
        "    A_scores_1_k = C[:, None, :] * Q_k.transpose(-2, -1)[..., None, :, :]  # ... r n s",
        '    A_scores = torch.einsum("...rns,...ms->...rnm", A_scores_1_k, K)  # ... r n m',
        "    keep, bias = visible(None, mask, key_mask, len(rows.batch), 1)",
        "    A = masked_softmax(A_scores, keep, bias)  # ... r n m",
        '    return torch.einsum("...rnm,...rm->...rn", A, V)  # ... r n',
    ]
    maps = [line.strip() for line in backward.splitlines() if line.endswith("# ... r n m")]
    assert maps[1:] == [
        "A = masked_softmax(A_scores, keep, bias)  # ... r n m",
        "d_A = gradient[..., None] * V[..., None, :]  # ... r n m",
        "d_A_scores = softmax_gradient(A, d_A, keep)  # ... r n m",
    ]
    assert backward.splitlines()[-1] == "    return d_C, d_Q, d_K, d_V, d_mask, None"


def test_rows_that_scores_read_end_with_their_width() -> None:
    """A block of them is read without a copy that turns it."""
    source = ta.emit_source(ta.load("thsa", legs={"f": 256, "r": 64, "s": 512}), backend="torch", package=True)
    lines = forward_of(source).splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip().startswith("A_q = "))
    assert next(line for line in lines[first:] if "#" in line).endswith("# ... n r f")


def test_products_with_few_columns_are_turned() -> None:
    def last(**legs: int) -> str:
        source = ta.emit_source(ta.load("talking_heads", legs=legs), backend="torch", package=True)
        return tile_of(source).split("\n\n\n")[0].splitlines()[-1].strip()

    assert last() == "return U @ V  # ... e n d"
    assert last(f=64, h=8) == "return (V.transpose(-2, -1) @ U.transpose(-2, -1)).mT  # ... e n d"


def test_the_backward_makes_what_is_wanted() -> None:
    backward = tile_of(ta.emit_source("hard_fish", package=True)).split("\n\n\n")[1]
    assert backward.splitlines()[:2] == [
        "@block_gradient(y_1_rows)",
        "def y_1_rows_backward(rows, gradient, wanted, Q, K, P, V, mask, key_mask):",
    ]
    assert 'd_V = A.mT @ gradient if "V" in wanted else None' in backward
    assert "A @ V" not in backward  # the result is not made again


def test_relative_positions_are_those_of_the_block() -> None:
    source = ta.emit_source("transformer_xl", package=True)
    assert "spans=" in tile_of(source)
    assert "relative_rows(" in tile_of(source)


def test_what_is_drawn_is_told() -> None:
    dropout, noise = (ta.emit_source(ta.load(TAKEN[name]), package=True) for name in ("dropout", "noise"))
    assert tile_of(dropout).count("drawn_rows(A_whole, 0.5, rows)") == 2  # forward and backward
    assert "d_A_whole = dropped_rows(gradient @ V.mT, A_entries)" in tile_of(dropout)
    assert "self.training, self.training" in " ".join(forward_of(dropout).split())
    assert 'None if noise is None else noise.get("eps")' in forward_of(noise)
    assert "eps = noise_rows(eps, (*rows.batch, h, rows.at.shape[0], rows.m), 1, rows.training, rows, Q)" in noise
    assert "self.training" not in forward_of(ta.emit_source(ta.load(TAKEN["causal"]), package=True))


def test_masks_of_a_step_know_the_rows() -> None:
    assert "causal_rows(rows)" in tile_of(ta.emit_source(ta.load(TAKEN["causal"]), package=True))
    assert "band_rows(rows, 1)" in tile_of(ta.emit_source(ta.load(TAKEN["a band"]), package=True))
    assert "window_rows(rows, 2, -1)" in tile_of(ta.emit_source(ta.load(TAKEN["a window to one side"]), package=True))


def test_two_results_are_two_functions_of_their_own_names() -> None:
    source = ta.emit_source(ta.load(TAKEN["read twice"]), package=True)
    assert source.count("@block_function(") == 2
    assert forward_of(source).count("blockwise(") == 2


def test_gradients_of_several_maps_are_not_copied() -> None:
    source = ta.emit_source("mgk_hard", backend="torch", package=True)
    assert "Q_k[..., None, :, :] @ K.transpose(-3, -2).mT" in source
    assert "d_K = (d_L.mT @ Q_k[..., None, :, :]).transpose(-3, -2) if" in source
    assert "d_Q = d ** -0.5 * (d_L @ K.transpose(-3, -2)).sum(-3) if" in source
