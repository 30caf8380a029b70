"""Plots: what stands on which panel, and matplotlib's absence."""

from __future__ import annotations

import sys

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.analyse import plots
from tests.refusals import refusal


def epa() -> tuple[torch.nn.Module, torch.Tensor]:
    return ta.compile(ta.load("epa", legs={"f": 6, "h": 3, "e": 4})), torch.randn(2, 6, 6)


def titles(figure) -> list[str]:
    return [axis.get_title() for axis in figure.axes if axis.get_title()]


def test_mean_maps_stand_on_small_multiples() -> None:
    maps = ta.attention_maps(*epa())["A"]
    figure = ta.plot_maps(maps)
    assert titles(figure) == ["h 0", "h 1", "h 2"]
    for place, axis in enumerate(figure.axes[:3]):
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("m", "n")
        shown = torch.tensor(axis.images[0].get_array())
        torch.testing.assert_close(shown, ta.mean_maps(maps)[place].double())
    assert titles(ta.plot_maps(maps, heads=2)) == ["h 0", "h 1"]


def test_ranks_are_counted_by_band() -> None:
    maps = ta.Maps("A", torch.eye(6).expand(4, 2, 6, 6), ("h", "n", "m"))
    figure = ta.plot_ranks(maps, bands=(0, 1))
    assert titles(figure) == ["whole maps\nmean rank 6.0 of 6", "1 diagonals removed\nmean rank 0.0 of 6"]
    counts = [[bar.get_height() for bar in axis.patches] for axis in figure.axes]
    assert counts == [[0, 0, 0, 0, 0, 0, 8], [8, 0, 0, 0, 0, 0, 0]]


def test_ranks_of_several_batches_are_those_of_one() -> None:
    maps = torch.eye(6).expand(4, 2, 6, 6).triu() * torch.rand(4, 2, 1, 6).gt(0.3)
    heights = [
        [[bar.get_height() for bar in axis.patches] for axis in ta.plot_ranks(given).axes]
        for given in (maps, (part for part in maps.split(3)))
    ]
    assert heights[0] == heights[1]


def test_a_section_gives_its_maps_a_few_samples_at_a_time() -> None:
    layer, x = ta.compile(ta.load("cross", legs={"f": 8, "h": 2})), torch.randn(5, 4, 8)
    memory, key_mask = torch.randn(5, 3, 8), torch.rand(5, 3) > 0.3
    section = ta.Section("", layer, (x, memory), see={"key_mask": key_mask, "mask": torch.ones(4, 3).bool()})
    parts = [maps.values for maps in section.maps("A", samples=2)]
    assert [len(part) for part in parts] == [2, 2, 1]
    torch.testing.assert_close(torch.cat(parts), ta.attention_maps(layer, x, memory, key_mask=key_mask)["A"].values)


def test_spectra_have_a_line_a_head() -> None:
    maps = ta.attention_maps(*epa())["A"]
    figure = ta.plot_spectra(maps, core=torch.eye(3))
    assert [len(axis.lines) for axis in figure.axes] == [3 + 1, 1]  # and the bound of ranks
    wanted = ta.singular_values(maps).mean(0)[0]
    torch.testing.assert_close(torch.tensor(figure.axes[0].lines[0].get_ydata()), wanted)


def test_experts_stand_beside_their_map() -> None:
    layer, x = epa()
    figure = ta.plot_experts(ta.expert_selections(layer, x), ta.attention_maps(layer, x)["A"], batch=1, heads=1)
    assert [title.partition(",")[0] for title in titles(figure)] == ["A", "Gd", "Gs"]
    map_, query, key = figure.axes
    assert (map_.get_xlabel(), map_.get_ylabel()) == ("m", "n")
    assert (query.get_xlabel(), query.get_ylabel()) == ("e", "n")
    assert (key.get_xlabel(), key.get_ylabel()) == ("m", "e")
    shown = key.images[0].get_array()
    found = ta.expert_selections(layer, x)["Gs"]
    torch.testing.assert_close(torch.tensor(shown.filled(0)).T, found.dense[1, :, 0].double())
    assert (found.chosen[1, :, 0] == ~torch.tensor(shown.mask).T).all()


def test_experts_without_a_map_and_heads_without_experts() -> None:
    layer = ta.compile(ta.load("sigma_moe", legs={"f": 4, "e": 6, "l": 3}))
    found = ta.expert_selections(layer, torch.randn(2, 5, 4))
    assert len(ta.plot_experts(found["G"]).axes) == 1
    layer = ta.compile(ta.load("moa", legs={"f": 8, "e": 4}, settings={"k": 2}))
    x = torch.randn(2, 5, 8)
    figure = ta.plot_experts(ta.expert_selections(layer, x), ta.attention_maps(layer, x)["A"])
    assert titles(figure)[0] == "A, mean over e"


@pytest.mark.parametrize(
    ("plot", "arguments", "message"),
    [
        ("plot_maps", (torch.ones(1, 0, 4, 4),), "there is nothing to plot."),
        ("plot_experts", ({},), "there is nothing to plot."),
        ("plot_ranks", (torch.ones(4, 4), ()), "there is nothing to plot."),
        ("plot_eigenvalues", ({},), "there is nothing to plot."),
        ("plot_max_maps", ({},), "there is nothing to plot."),
        ("plot_induction", ({},), "there is nothing to plot."),
    ],
)
def test_nothing_to_plot(plot: str, arguments, message: str) -> None:
    assert refusal(lambda: getattr(ta, plot)(*arguments)) == message


def test_a_sequence_that_is_not_there() -> None:
    layer, x = epa()
    assert refusal(ta.plot_experts, ta.expert_selections(layer, x), batch=2) == "batch is 2, but there are 2 sequences."


def lines(axis) -> list[torch.Tensor]:
    """The values of each line but the straight ones that mark a place."""
    return [torch.tensor(line.get_ydata()) for line in axis.lines if line.get_linestyle() == "-"]


def test_eigenvalues_are_a_histogram_and_cumulative_sums() -> None:
    maps = torch.randn(5, 4, 6, 6, generator=torch.Generator().manual_seed(0)).softmax(-1)
    found = ta.map_eigenvalues(maps)
    figure = ta.plot_eigenvalues(maps, top=8)
    left, middle, right = figure.axes
    counts, edges = found.histogram(8, 25)
    assert left.patches[0].get_data().values.tolist() == counts.tolist()
    torch.testing.assert_close(torch.tensor(left.patches[0].get_data().edges), edges)
    torch.testing.assert_close(lines(middle)[0], found.cumulative[:8])
    torch.testing.assert_close(lines(right)[0], found.cumulative)
    assert titles(figure) == [
        "the 8 largest eigenvalues",
        "cumulative sum, first 8",
        f"cumulative sum, all 20\n{found.components()} components for 95%",
    ]
    assert right.lines[-1].get_xdata()[0] == found.components()


def test_eigenvalues_of_layers_have_a_line_each_and_one_of_their_mean() -> None:
    layers = {f"layer {i}": torch.randn(5, 2, 6, 6, generator=torch.Generator().manual_seed(i)) for i in range(3)}
    found = [ta.map_eigenvalues(maps) for maps in layers.values()]
    mean = sum(each.values for each in found) / 3
    figure = ta.plot_eigenvalues(layers)
    (*each, averaged) = lines(figure.axes[2])
    for line, wanted in zip(each, found, strict=True):
        torch.testing.assert_close(line, wanted.cumulative)
    torch.testing.assert_close(averaged, mean.cumsum(0) / mean.sum())
    again = ta.plot_eigenvalues(dict(zip(layers, found, strict=True)))
    assert titles(again) == titles(figure)
    assert len(ta.plot_eigenvalues(torch.zeros(2, 1, 3, 3)).axes[0].patches) == 0


def test_the_maximum_over_heads_has_a_panel_a_layer() -> None:
    layer, x = epa()
    maps = ta.attention_maps(layer, x)["A"]
    figure = ta.plot_max_maps({"first": maps, "second": maps.values[:, :1]}, batch=1)
    assert titles(figure) == ["first", "second"]
    shown = [torch.tensor(axis.images[0].get_array()) for axis in figure.axes[:2]]
    torch.testing.assert_close(shown[0], ta.max_maps(maps)[1].double())
    torch.testing.assert_close(shown[1], maps.values[1, 0].double())
    assert titles(ta.plot_max_maps(maps)) == ["A"]
    assert refusal(ta.plot_max_maps, maps, batch=2) == "batch is 2, but there are 2 sequences."


def test_induction_scores_stand_beside_the_map_of_the_strongest_head() -> None:
    maps = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).softmax(-1)
    perfect = torch.eye(8).roll(3, 0).expand(2, 2, 8, 8)
    figure = ta.plot_induction({"first": maps, "second": perfect})
    left, right = figure.axes[:2]
    shown = torch.tensor(left.images[0].get_array())
    torch.testing.assert_close(shown[0], ta.induction_scores(maps))
    assert shown[1].isnan().tolist() == [False, False, True]
    assert [text.get_text() for text in left.texts] == [f"{score:.2f}" for score in shown[0].tolist()] + ["1.00"] * 2
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["first", "second"]
    assert right.get_title() == "second, h 0\nscore 1.00"
    assert torch.equal(torch.tensor(right.images[0].get_array()), perfect[0, 0].double())
    many = ta.plot_induction(maps[:1, :1].expand(1, 40, 8, 8))
    assert len(many.axes[0].texts) == 0
    assert many.get_figwidth() < 13


def test_pyplot_and_its_state_are_left_alone() -> None:
    ta.plot_maps(torch.eye(3)[None])
    ta.plot_induction(torch.eye(4)[None])
    assert "matplotlib.pyplot" not in sys.modules


def test_matplotlib_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    with pytest.raises(ta.MissingPartError) as error:
        ta.plot_maps(torch.eye(3)[None])
    assert str(error.value) == "plots need matplotlib; run pip install 'tensornet-attn[plot]'."
