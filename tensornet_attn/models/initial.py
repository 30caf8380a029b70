"""How first values are drawn, by name: one row of data each, and one function that follows it.

A row speaks of the random matrices of a design: weights that start by `xavier`, and those that start by `normal` or
`uniform` and have the leg of the width. All other weights and states start as the design says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from tensornet_attn.graph.model import Graph
from tensornet_attn.graph.pairs import summed_dims
from tensornet_attn.runtime.draw import xavier_


@dataclass(frozen=True)
class Initialisation:
    """`matrices`: design (as it says), normal (std), xavier, fan_in (normal, fan_in ** -0.5), linear (as nn.Linear).

    `embedding`: the std of token and position tables, or None for width ** -0.5. `norms`: the std of a norm's weights
    around 1. `depth`: a factor on all matrices, `residual` one on those that write to the residual stream; both over
    L, the layers of the stack, and S, its designs.
    """

    source: str
    matrices: str
    std: float = 0.02
    embedding: float | None = 0.02
    norms: float = 0.0
    depth: str = "1"
    residual: str = "1"


_XL = "N(0, 0.02) for matrices and embeddings, norms N(1, 0.02): Transformer-XL's training code, "
_LRA = "embeddings N(0, 0.02), matrices as nn.Linear: the code that MGK and FMMformer released for Long Range Arena"
_EPA = "N(0, 2 / (L fan_in)) for matrices, EPA's released code; embeddings N(0, 1 / width), from memory"
INITIALISATIONS = {
    "design": Initialisation("as each design says; embeddings N(0, 0.02)", "design"),
    "normal": Initialisation("N(0, 0.02) for all: BERT, from memory", "normal"),
    "gpt2": Initialisation("N(0, 0.02), residual outputs / sqrt(S): GPT-2, section 2.3", "normal", residual="S"),
    "xavier": Initialisation(
        "Xavier uniform, embeddings N(0, 1 / width): fairseq, from memory", "xavier", embedding=None
    ),
    "transformer_xl": Initialisation(_XL + "Dai et al. (2019)", "normal", norms=0.02),
    "mgk": Initialisation(_XL + "on which MGK's released language models stand", "normal", norms=0.02),
    "fmm": Initialisation(_XL + "on which FMMformer's released language models stand", "normal", norms=0.02),
    "lra": Initialisation(_LRA, "linear"),
    "epa": Initialisation(_EPA, "fan_in", embedding=None, depth="2/L"),
}


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """Draws the first values of a `Model` as its description, `model.spec`, says; torch's seed decides them."""
    rule = INITIALISATIONS[model.spec.config.init]
    for name, parameter in model.named_parameters():
        if name.split(".")[0] in ("embedding", "target_embedding", "cls") or name.endswith("positions.table"):
            parameter.normal_(0, rule.embedding if rule.embedding is not None else parameter.shape[-1] ** -0.5)
    if getattr(model, "projection", None) is not None:
        _draw(rule, model.projection.weight, (1,), None)
    if model.output is not None:
        _draw(rule, model.output.weight, (1,), None)
    for stack in model.spec.stacks:
        _stack(rule, getattr(model, stack))
    for module in model.modules():
        if rule.norms and isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            module.weight.normal_(1, rule.norms)


def _stack(rule: Initialisation, blocks: nn.ModuleList) -> None:
    designs = [getattr(block, role).design for block in blocks for role in block.roles]
    factors = {"1": 1.0, "S": len(designs) ** -0.5, "2/L": (2 / len(blocks)) ** 0.5}
    for design in designs:
        graph = design.plan.graph
        outputs = residual_outputs(graph)
        for name in random_matrices(graph):
            weight, tensor = getattr(design, name), graph.tensor[name]
            declared = tensor.init.name if tensor.init is not None else "xavier"
            _draw(rule, weight, summed_dims(graph, tensor), declared)
            weight.mul_(factors[rule.depth] * (factors[rule.residual] if name in outputs else 1.0))


def _draw(rule: Initialisation, weight: torch.Tensor, summed: tuple[int, ...], declared: str | None) -> None:
    """`declared`: the design's own initialiser, by which the weight was drawn already; None for what is no design's."""
    fan_in = prod(weight.shape[dim] for dim in summed)
    if rule.matrices == "normal":
        weight.normal_(0, rule.std)
    elif rule.matrices == "xavier" or (rule.matrices == "design" and declared is None):
        xavier_(weight, summed)
    elif rule.matrices == "linear":
        weight.uniform_(-(fan_in**-0.5), fan_in**-0.5)
    elif rule.matrices == "fan_in" and declared != "normal":  # a design's own normal has its fan-in already
        weight.normal_(0, fan_in**-0.5)


def random_matrices(graph: Graph) -> Iterator[str]:
    """The trainable weights that an initialisation speaks of."""
    width = graph.of_role("input")[0].legs[-1]
    for tensor in graph.of_role("weight"):
        name = tensor.init.name if tensor.init is not None else "xavier"
        if not tensor.frozen and (name == "xavier" or (name in ("normal", "uniform") and width in tensor.legs)):
            yield tensor.name


def residual_outputs(graph: Graph) -> set[str]:
    """The weights through which a design writes to its output: those that have the output's width leg."""
    found, waiting = set(), [(graph.output, graph.legs_of(graph.output)[-1])]
    while waiting:
        name, leg = waiting.pop()
        step = graph.step[name]
        for use in step.op.uses:
            if leg not in use.legs:
                continue
            if use.name in graph.step:
                waiting.append((use.name, graph.legs_of(use.name)[use.legs.index(leg)]))
            elif graph.tensor[use.name].role == "weight" and step.contraction is not None:
                found.add(use.name)
    return found
