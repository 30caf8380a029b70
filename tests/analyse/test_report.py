"""The report: one page, complete in itself, with every box and every selection of every section."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
import torch

import tensornet_attn as ta

QUICK = ("epa", "cross", "sigma_moe")
NOTHING = {"mlp"}


class Page(HTMLParser):
    """Tags in balance, the addresses of what is loaded, and the text."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.sources += [value for name, value in attributes if name in ("src", "srcset", "action")]
        self.sources += [value for name, value in attributes if name == "href" and not value.startswith("#")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def small(name: str) -> torch.nn.Module:
    """A design with few heads and components, so that pages are made fast."""
    design = ta.load(name)
    legs = {
        leg: 32
        for leg in ("r", "s", "f")
        if design.legs.get(leg, 0) == 512 and not str(design.declared_legs[leg]).count("*")
    }
    return ta.compile(ta.load(name, legs=legs))


def mhsa() -> torch.nn.Module:
    return ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2}))


def inputs_of(layer: torch.nn.Module) -> list[torch.Tensor]:
    graph = layer.plan.graph
    shapes = [[8 if graph.leg[leg].sequence else graph.leg[leg].size for leg in t.legs] for t in graph.of_role("input")]
    return [torch.randn(2, *shape) for shape in shapes]


def check(name: str) -> None:
    layer = small(name)
    page = Page(ta.report([(f"the {name}", layer, inputs_of(layer))], title="All of it"))
    assert page.open == []
    assert page.sources
    assert all(source.startswith("data:image/") for source in page.sources)
    for step in ta.attention_maps(layer, *inputs_of(layer)):
        assert f"Attention box {step}" in page.text
    assert ("Expert selections" in page.text) == bool(ta.expert_selections(layer, *inputs_of(layer)))
    assert "nan" not in page.text.split()


@pytest.mark.rotated
@pytest.mark.parametrize("name", QUICK)
def test_reports_of_some_designs(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(ta.list_designs()) - {*QUICK, *NOTHING}))
def test_reports_of_all_other_designs(name: str) -> None:
    check(name)


def test_the_figures_are_those_of_the_functions() -> None:
    layer = small("hard_fish")
    (x,) = inputs_of(layer)
    text = Page(ta.report([("layer", layer, (x,))], band=3)).text
    maps = ta.attention_maps(layer, x)["A"]
    assert f"{ta.effective_heads(layer):.2f} of 8" in text
    distances = ta.head_distances(maps)
    assert f"{distances.mean:.3f} ± {distances.std:.3f}" in text
    assert f"{ta.principal_components(maps).double().mean():.1f} of 7" in text
    assert "rank without 3 diagonals" in text
    for head in range(8):
        assert f"h {head}{ta.map_rank(maps)[:, head].double().mean():.1f}" in text


def test_several_sections_have_links_and_everything_is_escaped() -> None:
    layer = mhsa()
    text = ta.report(
        [("<b>first</b>", layer, inputs_of(layer)), ("second", layer, inputs_of(layer))], "<i>", notes=["<u>"]
    )
    assert re.findall(r'<li><a href="#(\w+)">(.*?)</a>', text) == [
        ("part0", "&lt;b&gt;first&lt;/b&gt;"),
        ("part1", "second"),
    ]
    for raw in ("<b>", "<i>", "<u>", "<script"):
        assert raw not in text


def test_a_core_that_is_not_defined_is_said_and_so_is_what_has_no_entropy() -> None:
    child = {"tensornet": 1, "name": "own", "extends": "mhsa", "legs": {"f": 16, "h": "head 2"}}
    child |= {"diagram": {"A": {"keep": "m", "of": "Q[n h d] K[m h d] + x[n f] x[m f] -> h n m"}}}
    layer = ta.compile(child)
    text = Page(ta.report([("own", layer, inputs_of(layer))])).text
    assert "own: the core of 'A' is not defined: its scores add 2 products of a query and a key side." in text
    assert "No entropy (nats): the maps of 'A' have entries that are negative or not numbers: no distributions." in text


def test_the_same_layer_gives_the_same_page() -> None:
    layer = mhsa()
    inputs = inputs_of(layer)
    assert ta.report([("a", layer, inputs)]) == ta.report([("a", layer, inputs)])


def test_nothing_to_analyse() -> None:
    layer = ta.compile(ta.load("mlp", legs={"f": 4}))
    wanted = "there is nothing to analyse: no attention box (softmax, normalize or keep over the key leg) and no topk."
    for sections, who in (([("a", layer, [torch.randn(3, 4)])], "mlp"), ([], "report")):
        with pytest.raises(ta.InputError) as error:
            ta.report(sections)
        assert str(error.value) == f"{who}: {wanted}"
    with pytest.raises(ta.InputError) as error:
        ta.report([("a", torch.nn.Linear(2, 2), [])])
    assert str(error.value) == "report takes a compiled design, as ta.compile makes it, not a Linear."
