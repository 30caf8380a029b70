"""Answers the requests of the playground's page. It does not need torch.

The worker of the page imports this module in Pyodide and calls `answer` for each request. Tests call it in CPython.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from tensornet_attn import compiler
from tensornet_attn.cost.target import Target, TargetOptions, current, target_from
from tensornet_attn.draw import to_dot
from tensornet_attn.draw.render import description
from tensornet_attn.draw.themes import theme_named
from tensornet_attn.errors import DesignError, InputError, Problem, TensornetError
from tensornet_attn.graph import examine
from tensornet_attn.graph.graph import Graph
from tensornet_attn.rewrite.table import firings
from tensornet_attn.spec import Design, read
from tensornet_attn.spec.read import ReadDesign
from tensornet_attn.special.lattice import check_contains

FILE = "design.yaml"  # the name of the editor's text in messages
Request = dict[str, Any]
Answer = dict[str, Any]


def answer(request: str) -> str:
    """Answers a request; both are JSON. `want` is a key of ANSWERS, `text` the design, `legs` its overridden sizes.

    Errors in the text, a size or a length are returned as `problems` or `error`, not raised.
    """
    asked = json.loads(request)
    try:
        found = ANSWERS[asked["want"]](asked)
    except DesignError as error:
        found = {"problems": [told(problem) for problem in error.problems]}
    except TensornetError as error:
        found = {"error": str(error)}
    return json.dumps(found)


def told(problem: Problem) -> Answer:
    """A problem, with its text as the command line prints it."""
    return problem.as_dict() | {"text": str(problem).replace("<text>", FILE)}


@lru_cache(maxsize=8)
def _examined(text: str, legs: str) -> tuple[ReadDesign, Graph | None]:
    """The reading and the graph of a text, which is None on errors. Cached for all requests."""
    reading = read(f"{text}\n", json.loads(legs), None, compiler.Design)  # a line break marks text, not a name
    graph = examine(reading)
    wrong = any(problem.severity == "error" for problem in reading.reporter.problems())
    return reading, None if wrong else graph


@lru_cache(maxsize=8)
def _contained(text: str, legs: str) -> list[Problem]:
    """All problems, including those of `contains`, which are slow because other designs are read."""
    reading, _ = _examined(text, legs)
    check_contains(reading)
    return reading.reporter.problems()


def examined(asked: Request) -> tuple[ReadDesign, Graph | None]:
    return _examined(asked["text"], json.dumps(asked.get("legs", {})))


def loaded(asked: Request) -> tuple[Design, Graph]:
    """The design of a request, and its graph. Raises DesignError."""
    reading, graph = examined(asked)
    if reading.design is None or graph is None:
        raise DesignError(reading.reporter.problems())
    return reading.design, graph


def check(asked: Request) -> Answer:
    """The problems except those of `contains`. Without errors, also the picture as DOT and the legs with sliders."""
    reading, graph = examined(asked)
    found: Answer = {"problems": [told(problem) for problem in reading.reporter.problems()]}
    if reading.design is None or graph is None:
        return found
    design = reading.design
    overlay = compiler.overlay_of(graph, asked.get("overlay"), asked.get("n"), asked.get("m"))
    theme = theme_named(asked.get("theme", "light"))
    return found | {
        "name": design.name,
        "about": design.about,
        "dot": to_dot(graph, design.name, theme=theme, overlay=overlay),
        "description": description(graph, design.about),
        "legs": sliders(design, graph),
    }


def contains(asked: Request) -> Answer:
    """All problems. The page requests them when typing pauses."""
    return {"problems": [told(one) for one in _contained(asked["text"], json.dumps(asked.get("legs", {})))]}


def sliders(design: Design, graph: Graph) -> list[Answer]:
    """The sequence legs, named n and m as in commands, and the legs whose size is a number in the file."""
    longest = {leg.name: leg.maximum for leg in graph.legs}
    ends = [("n", graph.query), ("m", graph.key)]
    found: list[Answer] = [
        {"name": name, "leg": leg, "most": longest[leg], "sequence": True} for name, leg in ends if leg is not None
    ]
    for name, declared in design.declared_legs.items():
        if str(declared).split()[-1].isdigit() and graph.leg[name].size is not None:
            found.append({"name": name, "leg": name, "size": graph.leg[name].size, "sequence": False})
    return found


def cost(asked: Request) -> Answer:
    _, graph = loaded(asked)
    return compiler.cost_of(graph, asked.get("n"), asked.get("m"), asked.get("batch", 1)).as_dict()


def plan(asked: Request) -> Answer:
    _, graph = loaded(asked)
    found = compiler.plan_of(graph, asked.get("backend", "auto"), _target(asked))
    return {"plan": found.as_dict(), "text": found.explain()}


def _target(asked: Request) -> Target:
    wanted = TargetOptions(workload=asked.get("workload", "training"), n=asked.get("n"), m=asked.get("m"))
    return target_from(**current(wanted))


def rewrites(asked: Request) -> Answer:
    """The rewrites that apply, in order, with the picture of the diagram after each of them."""
    _, graph = loaded(asked)
    theme, found = theme_named(asked.get("theme", "light")), []
    for one in firings(graph):
        try:
            dot = to_dot(one.firing.graph, f"{graph.name} after '{one.firing.rule.name}'", theme=theme)
        except TypeError:  # merged weights cannot be drawn
            dot = None
        found.append(one.as_dict() | {"dot": dot})
    return {"rewrites": found}


def source(asked: Request) -> Answer:
    """The source of the module for torch or triton."""
    if asked["backend"] not in ("torch", "triton"):
        raise InputError(f"backend '{asked['backend']}' has no source; use 'torch' or 'triton'.")
    design, _ = loaded(asked)
    wanted = TargetOptions(workload=asked.get("workload", "training"), n=asked.get("n"), m=asked.get("m"))
    return {"source": compiler.emit_source(design, backend=asked["backend"], package=True, **wanted)}


def warm(asked: Request) -> Answer:
    """Imports one of the modules in LATER; `left` is the number of those that remain."""
    import_module(LATER[asked["part"]])
    return {"left": len(LATER) - asked["part"] - 1}


LATER = (
    "networkx",
    "tensornet_attn.cost.report",
    "tensornet_attn.plan.decoding",
    "tensornet_attn.plan.implementations",
    "tensornet_attn.emit.module",
    "tensornet_attn.emit.triton",
)
ANSWERS: dict[str, Callable[[Request], Answer]] = {
    "check": check,
    "contains": contains,
    "cost": cost,
    "plan": plan,
    "rewrites": rewrites,
    "source": source,
    "warm": warm,
}
