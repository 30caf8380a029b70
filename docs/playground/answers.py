"""What the playground's page asks of the package: text in, JSON out; nothing here needs torch.

The page's worker imports this module in Pyodide and calls `answer`, one request after another. Tests call the same
function in CPython.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from tensornet_attn import compiler
from tensornet_attn.draw import to_dot
from tensornet_attn.draw.render import description
from tensornet_attn.draw.themes import theme_named
from tensornet_attn.errors import DesignError, InputError, Problem, TensornetError
from tensornet_attn.graph import examine
from tensornet_attn.graph.model import Graph
from tensornet_attn.plan.target import Target, TargetOptions, current, target_from
from tensornet_attn.rewrite.table import firings
from tensornet_attn.spec import Design, read
from tensornet_attn.spec.read import Reading
from tensornet_attn.special.lattice import check_contains

FILE = "design.yaml"  # what the text in the editor is called in messages
Request = dict[str, Any]
Answer = dict[str, Any]


def answer(request: str) -> str:
    """The answer to one request, both as JSON. `want` names one of ANSWERS; `text` is the design, `legs` other sizes.

    What is wrong with the text, a size or a length comes back as `problems` or `error`, never as an exception.
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
    """A problem with its text as the command line prints it."""
    return problem.as_dict() | {"text": str(problem).replace("<text>", FILE)}


@lru_cache(maxsize=8)
def _examined(text: str, legs: str) -> tuple[Reading, Graph | None]:
    """What was read and its graph, None where there is an error. Read once for all requests."""
    reading = read(f"{text}\n", json.loads(legs), None, compiler.Design)  # with a line end it is text, never a name
    graph = examine(reading)
    wrong = any(problem.severity == "error" for problem in reading.reporter.problems())
    return reading, None if wrong else graph


@lru_cache(maxsize=8)
def _contained(text: str, legs: str) -> list[Problem]:
    """All problems, those of `contains` too, for which other designs are read."""
    reading, _ = _examined(text, legs)
    check_contains(reading)
    return reading.reporter.problems()


def examined(asked: Request) -> tuple[Reading, Graph | None]:
    return _examined(asked["text"], json.dumps(asked.get("legs", {})))


def loaded(asked: Request) -> tuple[Design, Graph]:
    """The design of a request and its graph. Raises DesignError."""
    reading, graph = examined(asked)
    if reading.design is None or graph is None:
        raise DesignError(reading.reporter.problems())
    return reading.design, graph


def check(asked: Request) -> Answer:
    """The problems but those of `contains`; without errors also the picture as DOT and the legs that have sliders."""
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
    """All problems, asked for when nobody types."""
    return {"problems": [told(one) for one in _contained(asked["text"], json.dumps(asked.get("legs", {})))]}


def sliders(design: Design, graph: Graph) -> list[Answer]:
    """The sequence legs, called n and m as in commands, and the legs whose size is a plain number in the file."""
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
    """Each rewrite that fits, in order, with the picture of the diagram after it where one can be drawn."""
    _, graph = loaded(asked)
    theme, found = theme_named(asked.get("theme", "light")), []
    for one in firings(graph):
        try:
            dot = to_dot(one.firing.graph, f"{graph.name} after '{one.firing.rule.name}'", theme=theme)
        except TypeError:  # joined weights have no picture
            dot = None
        found.append(one.as_dict() | {"dot": dot})
    return {"rewrites": found}


def source(asked: Request) -> Answer:
    """The module's text for torch or triton."""
    if asked["backend"] not in ("torch", "triton"):
        raise InputError(f"no source is shown for '{asked['backend']}'; ask for 'torch' or 'triton'.")
    design, _ = loaded(asked)
    wanted = TargetOptions(workload=asked.get("workload", "training"), n=asked.get("n"), m=asked.get("m"))
    return {"source": compiler.emit_source(design, backend=asked["backend"], package=True, **wanted)}


def warm(asked: Request) -> Answer:
    """Imports one module that a later answer needs; `left` are still to come."""
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
