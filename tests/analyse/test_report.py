"""The report: one page, complete in itself, with every box and every selection of every section."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
import torch

import tensornet_attn as ta
from tests.refusals import refusal

QUICK = ("epa", "cross", "sigma_moe", "hard_lfish")
NOTHING = {"mlp", "fast_weight1", "fast_weight2", "glfish", "hard_glfish"}  # have no map
NOTHING |= {"swiglu", "geglu", "nemotron_mlp", "lfm2", "hgrn", "rg_lru", "mamba1", "mingru"}
NOTHING |= {"gated_deltanet", "gated_deltaproduct", "kda", "comba", "rwkv7"}


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
    settings = {"turned": 0.5} if "turned" in design.settings else {}  # of a head of four
    return ta.compile(ta.load(name, legs=legs, settings=settings))


def mhsa() -> torch.nn.Module:
    return ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2}))


def inputs_of(layer: torch.nn.Module) -> list[torch.Tensor]:
    graph = layer.plan.graph
    given = [tensor for tensor in graph.of_role("input") if tensor.default is None]
    shapes = [[8 if graph.leg[leg].sequence else graph.leg[leg].size for leg in tensor.legs] for tensor in given]
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
    assert f"mean, variance{distances.mean:.3f}, {distances.variance:.3g}" in text
    assert f"components for 95%, maps{ta.principal_components(maps)} of 16" in text
    scores = ta.attention_scores(layer, x)["A"]
    assert f"scores before the box{ta.principal_components(scores)} of 16" in text
    assert "rank without 3 diagonals" in text
    for head in range(8):
        assert f"h {head}{ta.map_rank(maps)[:, head].double().mean():.1f}" in text


def test_the_data_are_those_of_the_functions() -> None:
    layer = small("hard_fish")
    (x,) = inputs_of(layer)
    tokens = torch.randn(3, 5, 32).repeat(1, 2, 1)
    section = ta.Section("layer", layer, (x,), ("a note",), repeated=ta.Call((tokens,)))
    data = ta.report_data([section], "All", band=3, notes=["first"])
    (part,) = data["sections"]
    (box,) = part["boxes"]
    maps, scores = ta.attention_maps(layer, x)["A"], ta.attention_scores(layer, x)["A"]
    distances, found = ta.head_distances(maps), ta.map_eigenvalues(maps)
    induction = ta.induction_scores(ta.attention_maps(layer, tokens)["A"]).tolist()
    assert json.loads(json.dumps(data)) == data
    assert (data["tensornet_attn_analyse"], data["title"], data["notes"]) == (1, "All", ["first"])
    assert (part["title"], part["design"], part["causal"], part["notes"]) == ("layer", "hard_fish", False, ["a note"])
    assert box == {
        "step": "A",
        "blend": False,
        "sequences": 2,
        "queries": 8,
        "keys": 8,
        "heads": [f"h {i}" for i in range(8)],
        "effective_heads": pytest.approx(ta.effective_heads(layer)),
        "distances": {
            name: pytest.approx(getattr(distances, name)) for name in ("mean", "variance", "std", "min", "max")
        },
        "principal_components": {
            "variance": 0.95,
            "matrices": 16,
            "maps": ta.principal_components(maps),
            "scores": ta.principal_components(scores),
        },
        "eigenvalues": pytest.approx(found.values.tolist()),
        "eigenvalues_cumulative": pytest.approx(found.cumulative.tolist()),
        "rank": {str(band): pytest.approx(ta.map_rank(maps, band).double().mean(0).tolist()) for band in (0, 3, 12)},
        "entropy": pytest.approx(ta.map_entropy(maps).tolist()),
        "reach": pytest.approx(ta.map_reach(maps).tolist()),
        "vertical": pytest.approx(ta.vertical_scores(maps).tolist()),
        "induction": pytest.approx(induction),
    }
    assert data["means"] == {
        "effective_heads": box["effective_heads"],
        "distance_mean": box["distances"]["mean"],
        "distance_variance": box["distances"]["variance"],
        "principal_components": box["principal_components"]["maps"],
        "score_principal_components": box["principal_components"]["scores"],
        "largest_induction": pytest.approx(max(induction)),
    }


def test_means_are_over_the_boxes_that_have_a_figure() -> None:
    one, several = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 1})), mhsa()
    x = torch.randn(2, 8, 16)
    data = ta.report_data([("one", one, [x]), ("several", several, [x])])
    boxes = [part["boxes"][0] for part in data["sections"]]
    assert boxes[0]["distances"] is None
    assert data["means"]["distance_mean"] == boxes[1]["distances"]["mean"]
    assert data["means"]["effective_heads"] == pytest.approx(1.5)
    assert data["means"]["largest_induction"] is None
    counts = [box["principal_components"]["maps"] for box in boxes]
    assert data["means"]["principal_components"] == sum(counts) / 2


def test_experts_are_in_the_data() -> None:
    layer = ta.compile(ta.load("sigma_moe", legs={"f": 4, "e": 6, "l": 3}))
    x = torch.randn(2, 5, 4)
    data = ta.report_data([("moe", layer, [x])])
    (part,) = data["sections"]
    usage = ta.expert_selections(layer, x)["G"].usage.tolist()
    assert part["boxes"] == []
    assert part["experts"] == [{"step": "G", "of": 6, "chosen": 4, "usage": usage}]
    assert data["means"] == {}


def test_layers_stand_in_one_table_with_their_means() -> None:
    """As tables 8 and 9 of FiSHformer."""
    layers = [ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2})) for _ in range(3)]
    x = torch.randn(4, 8, 16)
    page = ta.report([(f"layer {i}", layer, [x]) for i, layer in enumerate(layers)])
    maps = [ta.attention_maps(layer, x)["A"] for layer in layers]
    distances = [ta.head_distances(found) for found in maps]
    mean, variance = (sum(getattr(found, name) for found in distances) / 3 for name in ("mean", "variance"))
    components = sum(map(ta.principal_components, maps)) / 3
    row = ["mean of 3 boxes", "2.00", f"{mean:.3g}", f"{variance:.3g}", f"{components:.1f}"]
    assert "".join(f"<td>{cell}</td>" for cell in row) in page
    assert "All layers" in page
    assert "All layers" not in ta.report([("layer", layers[0], [x])])


def test_repeated_tokens_give_induction_scores_on_the_page() -> None:
    layer = mhsa()
    tokens = torch.randn(3, 5, 16).repeat(1, 2, 1)
    section = ta.Section("layer", layer, tuple(inputs_of(layer)), repeated=ta.Call((tokens,)))
    text = Page(ta.report([section])).text
    scores = ta.induction_scores(ta.attention_maps(layer, tokens)["A"])
    assert "Induction scores on 3 sequences of 5 random tokens" in text
    for score in scores.tolist():
        assert f"{score:.3f}" in text
    assert "induction score" not in Page(ta.report([("layer", layer, inputs_of(layer))])).text


def test_sections_of_one_title_have_panels_of_their_own() -> None:
    layer = mhsa()
    page = ta.report([("same", layer, inputs_of(layer)), ("same", layer, inputs_of(layer))])
    assert page.count("same, A</td>") == 2


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
    assert "No entropy (nats): the maps of 'A' have negative or NaN entries, so rows are not distributions." in text


def test_the_same_layer_gives_the_same_page() -> None:
    layer = mhsa()
    inputs = inputs_of(layer)
    assert ta.report([("a", layer, inputs)]) == ta.report([("a", layer, inputs)])


def test_nothing_to_analyse() -> None:
    layer = ta.compile(ta.load("mlp", legs={"f": 4}))
    wanted = "there is nothing to analyse: no attention box (softmax, normalize or keep over the key leg) and no topk."
    for sections, who in (([("a", layer, [torch.randn(3, 4)])], "mlp"), ([], "report")):
        assert refusal(ta.report, sections) == f"{who}: {wanted}"
    sentence = "report takes a compiled design, as ta.compile returns it, not a Linear."
    assert refusal(ta.report, [("a", torch.nn.Linear(2, 2), [])]) == sentence


def test_blended_maps_have_figures_and_weights_but_no_part_in_the_means() -> None:
    layer = ta.compile(ta.load("fmm1", legs={"f": 16, "h": 2}))
    x = torch.randn(2, 8, 16)
    data = ta.report_data([("layer", layer, [x])])
    (part,) = data["sections"]
    near, far, blend = part["boxes"]
    assert [(box["step"], box["blend"]) for box in part["boxes"]] == [("near", False), ("far1", False), ("A", True)]
    assert blend["principal_components"]["scores"] is None
    assert data["means"]["distance_mean"] == pytest.approx((near["distances"]["mean"] + far["distances"]["mean"]) / 2)
    assert part["weights"] == {"near in A": [0.5, 0.5], "far1 in A": pytest.approx([0.7310585786] * 2)}
    text = Page(ta.report([("layer", layer, [x])])).text
    assert "near in Ah0.500, 0.500" in text
    assert "mean of 2 boxes" in text
