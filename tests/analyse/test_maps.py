"""Attention maps of a call, and their figures, against plain loops and exact values."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.analyse.maps import attention_steps, blended_steps, with_implied
from tests.refusals import refusal


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_maps(*shape: int, seed: int = 0) -> ta.Maps:
    return ta.Maps("A", normal(*shape, seed=seed).softmax(-1), ("h", "n", "m"))


@pytest.mark.parametrize("causal", [False, True])
def test_the_maps_and_scores_of_mhsa_by_plain_loops(causal: bool) -> None:
    """The scores are Q K^T without scale and mask."""
    layer = ta.compile(ta.load("mhsa", legs={"f": 12, "h": 3}), causal=causal, dtype=torch.float64)
    x = normal(2, 5, 12)
    (maps,), (scores,) = ta.attention_maps(layer, x).values(), ta.attention_scores(layer, x).values()
    Wq, Wk = (layer.state_dict()[name].numpy() for name in ("Wq", "Wk"))
    for found in (maps, scores):
        assert (found.step, found.legs, found.batch, found.heads) == ("A", ("h", "n", "m"), (2,), (3,))
    for b in range(2):
        for h in range(3):
            for n in range(5):
                products = [x[b, n].numpy() @ Wq[:, h] @ (x[b, m].numpy() @ Wk[:, h]) for m in range(5)]
                np.testing.assert_allclose(scores.values[b, h, n], products, atol=1e-12)
                weights = np.exp(np.divide(products[: n + 1 if causal else 5], 2))
                row = [*(weights / weights.sum()), *[0] * (5 - len(weights))]
                np.testing.assert_allclose(maps.values[b, h, n], row, atol=1e-12)


def test_head_legs_stand_before_query_and_key_in_written_order() -> None:
    layer = ta.compile(ta.load("gqa", legs={"f": 16, "g": 2, "j": 3, "d": 4}))
    maps = ta.attention_maps(layer, torch.randn(2, 3, 5, 16))["A"]
    assert (maps.legs, maps.batch, maps.heads) == (("g", "j", "n", "m"), (2, 3), (2, 3))
    assert maps.by_head.shape == (6, 6, 5, 5)
    assert maps.labels == ["g 0, j 0", "g 0, j 1", "g 0, j 2", "g 1, j 0", "g 1, j 1", "g 1, j 2"]
    assert torch.equal(maps.by_head[4, 5], maps.values[1, 1, 1, 2])


def test_masks_of_the_call_and_inputs_by_name_count() -> None:
    layer = ta.compile(ta.load("cross", legs={"f": 8, "h": 2}))
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    see = torch.tensor([[True, False, True, True]] * 2)
    maps = ta.attention_maps(layer, x, memory=memory, key_mask=see, mask=torch.ones(3, 4).bool().triu())["A"].values
    assert maps.shape == (2, 2, 3, 4)
    assert not maps[..., 1].any()
    assert not maps[..., 2, 0].any()
    assert refusal(ta.attention_maps, layer, x) == "cross: input 'memory' is missing; give x, memory."


def test_maps_are_those_of_evaluation_and_the_module_stays_as_it_is() -> None:
    steps = {"A": {"softmax": "m", "dropout": 0.5, "of": "Q[n h d] K[m h d] -> h n m"}}
    layer = ta.compile({"tensornet": 1, "name": "own", "extends": "mhsa", "legs": {"f": 16}, "diagram": steps})
    maps = ta.attention_maps(layer, torch.randn(4, 16))["A"].values
    torch.testing.assert_close(maps.sum(-1), torch.ones(8, 4))
    assert layer.training
    assert not maps.requires_grad


def test_a_design_without_attention_has_no_maps() -> None:
    assert ta.attention_maps(ta.compile(ta.load("mlp", legs={"f": 4})), torch.randn(3, 4)) == {}
    found = refusal(ta.attention_maps, torch.nn.Linear(2, 2), torch.randn(2, 2))
    assert found == "attention_maps takes a compiled design, as ta.compile returns it, not a Linear."


def test_what_are_no_maps() -> None:
    maps = random_maps(2, 3, 4, 4)
    assert refusal(ta.map_rank, {"A": maps}) == "give the maps of one step, not of 1: maps['A']."
    wanted = "give maps from ta.attention_maps, or a tensor [batch..., heads, query, key], not "
    assert refusal(ta.map_rank, torch.ones(3)) == f"{wanted}one of shape [3]."
    assert refusal(ta.mean_maps, 3) == f"{wanted}a int."
    assert refusal(ta.Maps, "A", torch.ones(3, 3), ("h", "n", "m")) == (
        "maps have shape [batch..., heads..., query, key]; [3, 3] is not of shape [batch..., h, n, m]."
    )


def test_scores_of_a_normalize_box_are_what_it_normalises() -> None:
    layer = ta.compile(ta.load("linear2", legs={"f": 12, "h": 3}), dtype=torch.float64)
    x = normal(2, 5, 12)
    scores, maps = ta.attention_scores(layer, x), ta.attention_maps(layer, x)
    assert list(scores) == ["far1", "far2"]
    assert list(maps) == ["far1", "far2", "A"]  # and their sum
    for step, found in scores.items():
        torch.testing.assert_close(found.values / found.values.sum(-1, keepdim=True), maps[step].values)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["hard_lfish", "lfish"])
def test_states_that_are_mixed_imply_maps(name: str, causal: bool) -> None:
    """The map of local and global heads, times the values of the global heads, is the output; all weights sum to 1."""
    layer = ta.compile(ta.load(name, legs={"f": 12, "h": 3, "g": 2}), causal=causal, dtype=torch.float64).eval()
    x, key_mask = normal(2, 5, 12), torch.tensor([True, True, False, True, True])
    (maps,) = ta.attention_maps(layer, x, key_mask=key_mask).values()
    assert (maps.step, maps.legs) == ("KV", ("h", "g", "n", "m"))
    assert ta.attention_scores(layer, x) == {}
    y = torch.einsum("bhgnm,bmge,hef->bnf", maps.values, layer.capture(x, "V"), layer.Wo)
    torch.testing.assert_close(y, layer(x, key_mask=key_mask))
    torch.testing.assert_close(maps.values.sum((2, 4)), torch.ones(2, 3, 5, dtype=torch.float64))


def test_a_score_step_with_other_names_and_order_of_legs_is_put_in_order() -> None:
    child = {"tensornet": 1, "name": "own", "extends": "mhsa", "legs": {"f": 16, "h": "head 2"}}
    child |= {"diagram": {"S": "Q[n h d] K[m h d] -> m h n", "A": {"softmax": "m", "of": "S[m h n] -> h n m"}}}
    layer, x = ta.compile(child, dtype=torch.float64), normal(3, 5, 16)
    scores, maps = ta.attention_scores(layer, x)["A"], ta.attention_maps(layer, x)["A"]
    assert scores.legs == maps.legs == ("h", "n", "m")
    torch.testing.assert_close(scores.values.softmax(-1), maps.values)


def test_the_maximum_over_heads_by_loops() -> None:
    maps = ta.Maps("A", normal(2, 3, 2, 4, 5), ("g", "j", "n", "m"))
    found = ta.max_maps(maps)
    assert found.shape == (2, 4, 5)
    for b in range(2):
        for n in range(4):
            for m in range(5):
                assert found[b, n, m] == max(maps.values[b, g, j, n, m] for g in range(3) for j in range(2))
    assert torch.equal(ta.max_maps(torch.eye(3)), torch.eye(3))
    assert refusal(ta.max_maps, torch.ones(2, 0, 3, 3)) == "'maps' has no heads, so there is no maximum."


def test_mean_maps_by_hand() -> None:
    maps = random_maps(3, 2, 4, 5)
    torch.testing.assert_close(ta.mean_maps(maps), sum(maps.values[b] for b in range(3)) / 3)
    assert refusal(ta.mean_maps, random_maps(0, 2, 4, 5)) == "the batch is empty, so there is no mean map."


def test_ranks_of_known_maps() -> None:
    assert ta.map_rank(torch.eye(7)[None]).tolist() == [7]
    assert ta.map_rank(torch.eye(7)).item() == 7
    assert ta.map_rank(torch.ones(1, 7, 7)).tolist() == [1]
    assert ta.map_rank(torch.eye(7)[None], band=1).tolist() == [0]
    assert ta.map_rank(torch.diag(torch.tensor([1.0, 2e-6, 5e-7]))[None]).tolist() == [2]
    assert ta.map_rank(torch.diag(torch.tensor([1.0, 2e-6, 5e-7]))[None], tolerance=1e-7).tolist() == [3]


@pytest.mark.parametrize("shape", [(6, 6), (4, 6), (6, 4)])
@pytest.mark.parametrize("band", [0, 1, 2, 3, 5, 20])
def test_a_band_is_removed_as_by_loops(shape: tuple[int, int], band: int) -> None:
    maps = random_maps(2, 3, *shape)
    n, m = shape
    for b in range(2):
        for h in range(3):
            left = maps.values[b, h].clone()
            for i in range(n):
                for j in range(m):
                    if band and abs(i + m - n - j) <= (band - 1) // 2:
                        left[i, j] = 0
            rank = int((np.linalg.svd(left.numpy(), compute_uv=False) > 1e-6).sum())
            assert ta.map_rank(maps, band)[b, h] == rank


@pytest.mark.parametrize("k", [1, 3, 5])
def test_nothing_is_left_of_banded_attention_without_its_band(k: int) -> None:
    layer = ta.compile(ta.load("band", legs={"f": 16}, settings={"k": k}))
    maps = ta.attention_maps(layer, torch.randn(2, 9, 16))["A"]
    assert not ta.map_rank(maps, band=k).any()
    assert ta.map_rank(maps).all()
    if k > 1:
        assert ta.map_rank(maps, band=k - 2).all()


def test_one_kernel_of_width_d_gives_rank_d_at_most() -> None:
    layer = ta.compile(ta.load("linear", legs={"f": 12, "h": 3}), dtype=torch.float64)
    maps = ta.attention_maps(layer, normal(2, 9, 12))["A"]
    assert ta.map_rank(maps, tolerance=1e-12).tolist() == [[4, 4, 4], [4, 4, 4]]


def test_ranks_of_nothing_and_of_what_is_wrong() -> None:
    assert ta.map_rank(random_maps(0, 2, 4, 4)).shape == (0, 2)
    for band in (-1, 1.5, True):
        wanted = f"band is {band!r}; give a number of diagonals, at least 0."
        assert refusal(ta.map_rank, torch.eye(2), band=band) == wanted
    assert refusal(ta.map_rank, torch.full((2, 2), torch.nan)) == "the maps of 'maps' have entries that are not finite."


def test_distances_by_loops() -> None:
    maps = random_maps(4, 5, 3, 6)
    rows = [
        [(maps.values[b, i] - maps.values[b, j]).norm().item() for i, j in combinations(range(5), 2)] for b in range(4)
    ]
    found = ta.head_distances(maps)
    assert found.mean == pytest.approx(np.mean(rows), abs=1e-12)
    assert found.variance == pytest.approx(np.mean([np.var(row) for row in rows]), abs=1e-12)
    assert found.std == pytest.approx(np.mean([np.std(row) for row in rows]), abs=1e-12)
    assert found.min == pytest.approx(np.mean([min(row) for row in rows]), abs=1e-12)
    assert found.max == pytest.approx(np.mean([max(row) for row in rows]), abs=1e-12)
    assert found.pairs[1, 3].item() == pytest.approx(
        np.mean([(maps.values[b, 1] - maps.values[b, 3]).norm() for b in range(4)])
    )


def test_equal_heads_are_at_distance_zero() -> None:
    one = normal(2, 1, 6, 6).softmax(-1)
    found = ta.head_distances(one.expand(2, 3, 6, 6))
    assert (found.mean, found.variance, found.std, found.min, found.max) == (0, 0, 0, 0, 0)
    other = torch.cat([normal(2, 1, 6, 6, seed=1).softmax(-1), one, one], 1)
    assert ta.head_distances(other).min == pytest.approx(0, abs=1e-14)


def test_one_head_has_no_distance() -> None:
    one = random_maps(2, 1, 4, 4)
    wanted = "'A' has one map per sequence, but distances between heads need at least two."
    assert refusal(ta.head_distances, one) == wanted
    none = random_maps(0, 2, 4, 4)
    assert refusal(ta.head_distances, none) == "the batch is empty, so there are no distances between heads."


def test_entropy_and_reach_by_loops() -> None:
    maps = random_maps(2, 3, 4, 6)
    for h in range(3):
        entropies, reaches = [], []
        for b in range(2):
            for n in range(4):
                row = maps.values[b, h, n].tolist()
                entropies.append(-sum(p * math.log(p) for p in row))
                reaches.append(sum(p * abs(n + 2 - m) for m, p in enumerate(row)))
        assert ta.map_entropy(maps)[h].item() == pytest.approx(np.mean(entropies), abs=1e-12)
        assert ta.map_reach(maps)[h].item() == pytest.approx(np.mean(reaches), abs=1e-12)


def test_vertical_scores_by_loops() -> None:
    maps = random_maps(3, 2, 5, 4)
    for head in range(2):
        most = [max(maps.values[b, head, :, key].mean().item() for key in range(4)) for b in range(3)]
        assert ta.vertical_scores(maps)[head].item() == pytest.approx(sum(most) / 3)
    line = torch.zeros(6, 6).index_fill(1, torch.tensor(2), 5.0)
    hidden = line.clone()
    hidden[:2] = 0  # rows that see no key
    assert ta.vertical_scores(line).item() == ta.vertical_scores(hidden).item() == 1
    assert ta.vertical_scores(torch.zeros(1, 3, 3)).isnan().all()


@pytest.mark.parametrize(("n", "m", "period"), [(8, 8, None), (8, 8, 4), (9, 9, 3), (5, 8, 4), (8, 8, 7), (2, 8, 4)])
def test_induction_scores_by_loops(n: int, m: int, period: int | None) -> None:
    maps = random_maps(3, 2, n, m)
    p = m // 2 if period is None else period
    for h in range(2):
        looked = [maps.values[b, h, q, q + m - n - p + 1].item() for b in range(3) for q in range(n) if q + m - n >= p]
        assert ta.induction_scores(maps, period)[h].item() == pytest.approx(np.mean(looked), abs=1e-12)


def test_an_induction_head_of_ones_own_has_the_score_1() -> None:
    """Built by hand: keys carry the token before, queries the token itself."""
    tokens = ta.repeated_tokens(20, period=6, batch=3)
    before = torch.cat([torch.full((3, 1), 20), tokens[:, :-1]], 1)
    scores = 50.0 * (tokens[:, :, None] == before[:, None, :])
    hidden = torch.ones(12, 12).triu(1).bool()
    maps = scores.masked_fill(hidden, -torch.inf).softmax(-1)[:, None]
    assert ta.induction_scores(maps).item() == pytest.approx(1, abs=1e-12)
    even = torch.ones(12, 12).tril()
    assert ta.induction_scores(even[None]).item() == pytest.approx(np.mean([1 / (i + 1) for i in range(6, 12)]))


def test_induction_scores_of_what_is_wrong() -> None:
    for period in (1, 0, 2.0, True):
        wanted = f"period is {period!r}; give an integer of at least 2."
        assert refusal(ta.induction_scores, torch.eye(6), period) == wanted
    wanted = "the maps of 'maps' have 6 keys, too few to repeat a sequence of 6 tokens."
    assert refusal(ta.induction_scores, torch.eye(6), 6) == wanted


def test_repeated_tokens_are_drawn_once_each() -> None:
    tokens = ta.repeated_tokens([3, 5, 7, 9, 11], period=5, batch=4, seed=1)
    assert tokens.shape == (4, 10)
    assert torch.equal(tokens[:, :5], tokens[:, 5:])
    assert all(sorted(row) == [3, 5, 7, 9, 11] for row in tokens[:, :5].tolist())
    assert len({tuple(row) for row in tokens.tolist()}) > 1
    assert torch.equal(tokens, ta.repeated_tokens([3, 5, 7, 9, 11], period=5, batch=4, seed=1))
    wanted = "period is 6; with 5 tokens, give an integer from 2 to 5."
    assert refusal(ta.repeated_tokens, 5, 6) == wanted
    assert refusal(ta.repeated_tokens, 5, 2, batch=0) == "batch is 0; give an integer of at least 1."


def test_rows_that_see_nothing_are_left_out() -> None:
    maps = torch.tensor([[[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    assert ta.map_entropy(maps)[0].item() == pytest.approx(math.log(2))
    assert ta.map_reach(maps)[0].item() == pytest.approx(0.5)
    assert ta.map_entropy(maps)[1].isnan()
    wanted = "the maps of 'maps' have negative or NaN entries, so rows are not distributions."
    assert refusal(ta.map_entropy, -maps) == wanted


@pytest.mark.parametrize("name", ta.list_designs())
def test_every_shipped_design(name: str) -> None:
    """Each figure of each attention box, in its range."""
    torch.manual_seed(0)
    layer = ta.compile(name)
    graph = layer.plan.graph
    shapes = [[6 if graph.leg[leg].sequence else graph.leg[leg].size for leg in t.legs] for t in graph.of_role("input")]
    maps = ta.attention_maps(layer, *(torch.randn(2, *shape) for shape in shapes))
    shown = {step.name for step in (*attention_steps(graph), *blended_steps(graph))}
    assert set(maps) == shown | with_implied(graph)[1].keys()
    for step, found in maps.items():
        if name == "rwkv4" and step == "own":  # of ones alone, without an input
            continue
        assert found.batch == (2,)
        assert found.values.isfinite().all()
        assert 0 < ta.principal_components(found) <= math.prod(found.heads) * 2
        assert ta.max_maps(found).shape == (2, 6, 6)
        ranks, heads = ta.map_rank(found), math.prod(found.heads)
        assert ranks.shape == (2, *found.heads)
        assert 0 <= ranks.min() <= ranks.max() <= 6
        if heads > 1:
            distances = ta.head_distances(found)
            assert 0 <= distances.min <= distances.mean <= distances.max
        if (found.values >= 0).all():
            assert (ta.map_entropy(found) <= math.log(6) + 1e-6).all()
            assert (ta.map_reach(found) <= 5).all()
            assert ((ta.induction_scores(found) >= 0) & (ta.induction_scores(found) <= 1)).all()
