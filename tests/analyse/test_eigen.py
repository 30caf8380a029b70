"""Eigenvalues of the covariance of attention matrices, and principal components, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensornet_attn as ta
from tests.analyse.test_maps import random_maps
from tests.refusals import refusal


def covariance(maps: ta.Maps) -> np.ndarray:
    """C = 1 / (M H) * sum over sequences and heads of vec(A) vec(A)^T, entry by entry."""
    batch, heads, n, m = maps.values.shape
    total = np.zeros((n * m, n * m))
    for b in range(batch):
        for h in range(heads):
            vector = [float(maps.values[b, h, i, j]) for i in range(n) for j in range(m)]
            for row, one in enumerate(vector):
                for column, other in enumerate(vector):
                    total[row, column] += one * other
    return total / (batch * heads)


@pytest.mark.parametrize("shape", [(3, 2, 3, 4), (7, 3, 3, 4)], ids=["fewer than entries", "more than entries"])
def test_eigenvalues_by_loops(shape: tuple[int, ...]) -> None:
    maps = random_maps(*shape)
    wanted = np.linalg.eigvalsh(covariance(maps))[::-1]
    found = ta.map_eigenvalues(maps)
    assert found.matrices == shape[0] * shape[1]
    assert found.values.dtype == torch.float64
    assert len(found.values) == min(found.matrices, 12)
    np.testing.assert_allclose(found.values, wanted[: len(found.values)], atol=1e-14)
    np.testing.assert_allclose(wanted[len(found.values) :], 0, atol=1e-14)
    np.testing.assert_allclose(found.cumulative, np.cumsum(wanted)[: len(found.values)] / wanted.sum(), atol=1e-12)


@pytest.mark.parametrize("variance", [0.2, 0.7, 0.95, 0.999, 1.0])
def test_components_by_loops(variance: float) -> None:
    maps = random_maps(4, 3, 3, 4)
    parts = np.linalg.eigvalsh(covariance(maps))[::-1]
    wanted = next(k for k in range(1, 13) if parts[:k].sum() / parts.sum() >= variance - 1e-12)
    assert ta.principal_components(maps, variance) == wanted
    assert ta.map_eigenvalues(maps).components(variance) == wanted


def test_many_batches_are_as_one() -> None:
    maps = random_maps(6, 3, 4, 4)
    whole = ta.map_eigenvalues(maps).values
    parts = [ta.Maps("A", maps.values[start : start + 2], maps.legs) for start in (0, 2, 4)]
    torch.testing.assert_close(ta.map_eigenvalues(parts).values, whole, rtol=0, atol=1e-15)
    torch.testing.assert_close(ta.map_eigenvalues(part for part in parts).values, whole, rtol=0, atol=1e-15)
    tensors = [part.values for part in parts]
    torch.testing.assert_close(ta.map_eigenvalues(tensors).values, whole, rtol=0, atol=1e-15)
    assert ta.principal_components(iter(parts)) == ta.principal_components(maps)


def test_parts_of_the_product_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than some entries are made float64 at once."""
    from tensornet_attn.analyse import measures

    for shape in ((3, 2, 3, 4), (7, 3, 3, 4)):
        maps = random_maps(*shape)
        whole = ta.map_eigenvalues(maps).values
        monkeypatch.setattr(measures, "CHUNK", 40)
        torch.testing.assert_close(ta.map_eigenvalues(maps).values, whole, rtol=0, atol=1e-15)
        monkeypatch.undo()


@pytest.mark.parametrize("alone", [0, 2048])
def test_the_threads_of_torch_are_as_they_were(alone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensornet_attn.analyse import measures

    used = []
    right = torch.linalg.eigvalsh
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda matrix: used.append(torch.get_num_threads()) or right(matrix))
    monkeypatch.setattr(measures, "ALONE", alone)
    threads = torch.get_num_threads()
    ta.map_eigenvalues(random_maps(2, 2, 3, 3))
    assert used == [1 if alone else threads]
    assert torch.get_num_threads() == threads


def test_forty_sequences_of_an_untrained_mhsa() -> None:
    """More components than heads: they count the maps of all sequences, not the heads of one."""
    torch.manual_seed(0)
    layer = ta.compile(ta.load("mhsa", legs={"f": 64}))
    x = torch.randn(40, 16, 64)
    maps = ta.attention_maps(layer, x)["A"]
    assert ta.principal_components(maps) == 138
    batches = (ta.attention_maps(layer, x[start : start + 8])["A"] for start in range(0, 40, 8))
    assert ta.principal_components(batches) == 138


def test_the_mean_is_not_subtracted() -> None:
    same = random_maps(1, 1, 4, 4).values.expand(5, 2, 4, 4)
    found = ta.map_eigenvalues(same)
    assert found.components() == 1
    assert found.values[0].item() == pytest.approx(float(same[0, 0].square().sum()))
    assert not found.values[1:].any()  # rounding is told from an eigenvalue


def test_zeros_have_no_component_and_no_histogram() -> None:
    found = ta.map_eigenvalues(torch.zeros(3, 2, 4, 4))
    assert (found.components(), found.values.tolist(), found.cumulative.tolist()) == (0, [0] * 6, [0] * 6)
    assert refusal(found.histogram) == "all eigenvalues are zero, so there is no histogram."


def test_the_histogram_by_loops() -> None:
    found = ta.map_eigenvalues(random_maps(6, 4, 6, 6))
    counts, edges = found.histogram(top=10, bins=4)
    values = found.values[:10].tolist()
    np.testing.assert_allclose(edges, np.geomspace(values[-1], values[0], 5))
    wanted = [0] * 4
    for value in values:
        wanted[next((place for place in range(4) if value < edges[place + 1] - 1e-12), 3)] += 1
    assert counts.tolist() == wanted
    assert found.histogram(top=1000)[0].sum() == 24
    assert refusal(found.histogram, 0) == "top is 0 and bins is 20; give integers of at least 1."


def test_what_has_no_eigenvalues() -> None:
    empty = "there are no attention matrices, because the batch is empty."
    assert refusal(ta.map_eigenvalues, random_maps(0, 2, 4, 4)) == empty
    assert refusal(ta.map_eigenvalues, []) == empty
    sizes = [random_maps(1, 2, 4, 4), random_maps(1, 2, 4, 5)]
    wanted = "the matrices have different sizes, 4 x 4 and 4 x 5; give one size."
    assert refusal(ta.map_eigenvalues, sizes) == wanted
    infinite = torch.full((2, 2), torch.inf)
    assert refusal(ta.map_eigenvalues, infinite) == "the maps of 'maps' have entries that are not finite."
    maps = {"A": random_maps(1, 1, 2, 2)}
    assert refusal(ta.map_eigenvalues, maps) == "give the maps of one step, not of 1: maps['A']."
    assert refusal(ta.map_eigenvalues, 3).endswith("not a int.")
    for variance in (0, 1.5):
        wanted = f"variance is {variance}; give a fraction above 0 and at most 1."
        assert refusal(ta.principal_components, torch.eye(2), variance) == wanted


def test_it_is_written_in_short() -> None:
    assert repr(ta.map_eigenvalues(torch.eye(2)[None])) == "Eigenvalues: 1 of 1 matrices, 1 for 95%"
