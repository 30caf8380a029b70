"""The C++ of linear attention: the header of regions, the passes, and the features of each kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from tensornet_attn.ir.arithmetic import evaluate
from tensornet_attn.tiles.cpp.source import headed
from tensornet_attn.tiles.cpp.values import mapped
from tensornet_attn.tiles.features import Feature
from tensornet_attn.tiles.program import Node

PASSES = (Path(__file__).parent / "linear.h").read_text(encoding="utf-8")
Values = Mapping[str, int]  # of index variables


def linear_source(kernels: Sequence[tuple[Feature, Feature]]) -> str:
    """The text for the features of the queries and of the keys of each kernel."""
    features = [(f"{i}, {side}", feature) for i, kernel in enumerate(kernels) for side, feature in enumerate(kernel)]
    source = PASSES.replace("@FEATURES@", "\n".join(_struct(key, feature) for key, feature in features))
    most_inputs = max(len(_inputs(feature)) for _, feature in features)
    return headed() + source.replace("@KERNELS@", str(len(kernels))).replace("@MOST@", str(most_inputs))


def _inputs(feature: Feature) -> list[tuple[int, tuple[int, ...]]]:
    """Each operand, by number, for each value of its small legs."""
    sizes = [[range(feature.sizes[leg]) for leg in operand.heads] for operand in feature.operands]
    return [(number, values) for number, ranges in enumerate(sizes) for values in product(*ranges)]


def _struct(key: str, feature: Feature) -> str:
    """The functions of a row: its features, and the gradients of inputs; those that rows share are added up."""
    inputs = _inputs(feature)
    axes = [feature.operands[number].axes for number, _ in inputs]
    forward, backward = _Row(feature), _Row(feature, {feature.result: "y[c]"})
    result, sums = forward.value(feature.result, {}), list[str]()
    for leaf, gradient in feature.slopes.items():
        for slot, (number, values) in enumerate(inputs):
            if number != leaf.data[0]:
                continue
            summand = backward.value(gradient, dict(zip(leaf.data[1], values, strict=True)))
            if "row" in axes[slot]:
                backward.lines.append(f"to[{slot}][c] = more[{slot}] ? to[{slot}][c] + {summand} : {summand};")
            elif "column" in axes[slot]:
                backward.lines.append(f"to[{slot}][c] += {summand};")
            else:
                backward.lines.append(f"sum{slot} += {summand};")
                sums.append(str(slot))
    reduction = f" reduction(+:{','.join(f'sum{slot}' for slot in sums)})" if sums else ""
    lines = [
        f"template <> struct Feature<{key}> {{",
        f"  static constexpr int INPUTS = {len(inputs)};",
        f"  static constexpr bool ROWS[] = {{{', '.join(str('row' in input_axes).lower() for input_axes in axes)}}};",
        "  static void of(real* __restrict y, const real* const* x, int width) {",
        "    #pragma omp simd",
        *_columns([*forward.lines, f"y[c] = {result};"]),
        "  }",
        "  static void slopes(real* const* to, const bool* more, const real* const* x, const real* y, const real* d,",
        "                     int width) {",
        *(f"    real sum{slot} = 0;" for slot in sums),
        f"    #pragma omp simd{reduction}",
        *_columns(backward.lines),
        *(f"    to[{slot}][0] += sum{slot};" for slot in sums),
        "  }",
        "};",
    ]
    return "\n".join(lines)


def _columns(body: Sequence[str]) -> list[str]:
    return ["    for (int c = 0; c < width; ++c) {", *(f"      {line}" for line in body), "    }"]


@dataclass
class _Row:
    """Prints nodes of column c, a constant each. `texts`: the texts of nodes that are there."""

    feature: Feature
    texts: Mapping[Node, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    names: dict[tuple[Node, tuple[int, ...]], str] = field(default_factory=dict)

    def value(self, node: Node, values: Values) -> str:
        if node in self.texts:
            return self.texts[node]
        if node.op == "gradient":
            return "d[c]"
        if node.op == "number":
            return f"real({float(evaluate(node.data[0], self.feature.values))!r})"
        if node.op == "load":
            number, index = node.data
            input_number = _inputs(self.feature).index((number, tuple(values[leg] if leg else 0 for leg in index)))
            return f"x[{input_number}][{'c' if 'column' in self.feature.operands[number].axes else '0'}]"
        key = node, tuple(values[variable] for variable in node.heads)
        if key not in self.names:
            expression = self.expression(node, values)
            self.names[key] = f"t{len(self.names)}"
            self.lines.append(f"const real {self.names[key]} = {expression};")
        return self.names[key]

    def expression(self, node: Node, values: Values) -> str:
        if node.op == "over":
            (arg,), variable = node.args, node.data[0]
            numbers = range(self.feature.nodes.sizes[variable])
            return " + ".join(self.value(arg, {**values, variable: number}) for number in numbers)
        arguments = [self.value(arg, values) for arg in node.args]
        if node.op in ("map", "slope"):
            return mapped(node, arguments)
        return {"add": " + ", "mul": " * "}[node.op].join(arguments)
