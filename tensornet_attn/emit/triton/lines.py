"""Renders a kernel as text: loops and the lines around them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tensornet_attn.emit.triton.bounds import LoopBounds, edge
from tensornet_attn.emit.triton.kernel import AFTER, BEFORE, FIRST, INSIDE, LAST, KernelText
from tensornet_attn.emit.triton.nodes import WORDS, flat, shape
from tensornet_attn.emit.wrap import wrapped
from tensornet_attn.tiles.loops import Loop, Statement
from tensornet_attn.tiles.program import Node

_INDENT = "    "
_BARRIER = "tl.debug_barrier()"
START = {"add": "0.0", "lse": 'float("-inf")', "max": 'float("-inf")'}
UPDATE = {
    "add": "{name} += {x}",
    "lse": "{name} = log_add({name}, {x})",
    "max": "{name} = maximum_of({name}, {x})",
    "any": "{name} |= {x}",
}
JOINED = {"add": "{name} + {x}", "lse": "log_add({name}, {x})", "max": "maximum_of({name}, {x})", "any": "{name} | {x}"}


def rendered(kernel: KernelText, section: int) -> list[str]:
    """The lines of a section, in loops."""
    kernel.scope.refer = lambda node: kernel.refer(node, section)
    lines = []
    for carried, start in kernel.starts.get(section, ()):
        count = kernel.program.tiles(carried.dims)
        lines.append(f"{carried.name} = {f'({start()},) * {count}' if carried.dims else start()}")
    return [*lines, *block(kernel, kernel.loops.get(section, []), (), section)]


def block(kernel: KernelText, children: Iterable[Loop | Statement], path: tuple[Loop, ...], section: int) -> list[str]:
    lines = []
    for child in children:
        if isinstance(child, Loop):
            lines += loop_lines(kernel, child, path, section)
        elif child.over:
            lines += added(kernel, child)
        else:
            lines += child.lines()
    return lines


def added(kernel: KernelText, statement: Statement) -> list[str]:
    """The line that adds a value to a sum over a variable."""
    (node,) = statement.makes
    (arg,) = (kernel.scope.instead.get(arg, arg) for arg in node.args)
    x, name = kernel.scope.ref(arg, node.axes), sum_of(kernel, statement)
    about = f"  # {' '.join(node.axes) or 'a number'}"
    if not statement.inner:
        return [UPDATE[statement.how].format(name=name, x=x) + about]
    index = flat(statement.inner, [kernel.program.sizes[variable] for variable in statement.inner])
    return [f"{name}_next += ({JOINED[statement.how].format(name=f'{name}[{index}]', x=x)},){about}"]


def sum_of(kernel: KernelText, statement: Statement) -> str:
    """The name of an accumulator: that of its node, unless that names a tuple."""
    (node,) = statement.makes
    section = next(section for section, statements in kernel.sections.items() if statement in statements)
    name, dims = kernel.names[node, section], kernel.dims[node, section]
    return f"{name}_sum" if len(dims) > len(statement.inner) else name


def loop_lines(kernel: KernelText, loop: Loop, path: tuple[Loop, ...], section: int) -> list[str]:
    statements, depth = [*loop.statements()], len(path)
    before, begin, end, after = [], [], [], []
    for statement in statements:
        outermost = next((i for i, enclosing in enumerate(statement.path) if enclosing.variable != kernel.rolled), None)
        for carried in statement.carried:
            if carried.dims and outermost == depth:
                before.append(f"{carried.name}_next = ()")
                after.append(f"{carried.name} = {carried.name}_next")
        for node in statement.makes:
            dims = kernel.dims[node, section]
            outer = dims[: len(dims) - len(statement.inner)]
            if outer and statement.result_loops[len(statement.result_loops) - len(outer)] is loop:
                before.append(f"{kernel.names[node, section]} = ()")
        if statement.over and loop is statement.path[len(statement.result_loops)]:
            (node,) = statement.makes
            name, count = sum_of(kernel, statement), kernel.program.tiles(statement.inner)
            start = zeros(kernel, node, statement.how)
            before.append(f"{name} = {f'({start},) * {count}' if statement.inner else start}")
            if statement.inner:
                begin.append(f"{name}_next = ()")
                end.append(f"{name} = {name}_next")
            if name != kernel.names[node, section]:
                after.append(f"{kernel.names[node, section]} += {name if statement.inner else f'({name},)'}")
    size = kernel.program.sizes[loop.variable]
    kind = "range" if loop.variable == kernel.rolled else "tl.static_range"
    body = [*begin, *block(kernel, loop.items, (*path, loop), section), *end]
    head = [f"for {loop.variable} in {kind}({size}):"]
    if loop.variable == kernel.scope.fours:
        head = [f"for {loop.variable}_four in range({size // WORDS}):"]
        head += [f"    for {loop.variable}_word in tl.static_range({WORDS}):"]
        body = [
            _INDENT + line
            for line in [f"{loop.variable} = {loop.variable}_four * {WORDS} + {loop.variable}_word", *body]
        ]
    if kernel.again and section == INSIDE and loop.variable == kernel.ranged:
        before.append(f"{_BARRIER}  # recompute instead of keeping values in registers")
    return [*before, *head, *(_INDENT + line for line in body), *after]


def zeros(kernel: KernelText, node: Node, how: str) -> str:
    sides = shape(kernel.program, kernel.scope.sides(node.axes))
    if how == "any":
        return f"tl.zeros({sides}, tl.int1)"
    return f"tl.zeros({sides}, SUMS)" if how == "add" else f"tl.full({sides}, {START[how]}, SUMS)"


def source(
    kernel: KernelText,
    name: str,
    about: str,
    parameters: Iterable[str],
    bounds: LoopBounds,
    last: bool,
    parted: Sequence[str] = (),
) -> str:
    """The function; `last`: the last blocks have the longest loops and start first.

    `parted`: the results that a program writes for its part of the keys, if several programs share them.
    """
    kernel.scope.before = before = list[str]()
    sections = {section: rendered(kernel, section) for section in (FIRST, BEFORE, INSIDE, AFTER, LAST)}
    inside = sections[INSIDE]
    if kernel.crowded and any("scalar(" in line for line in inside):
        inside.insert(0, f"{_BARRIER}  # reload scalars per block instead of keeping them")
    inside = [*block_lines(kernel), *pair_lines(kernel, inside), *inside]
    inside = [bounds.inside, *inside] if bounds.inside else inside
    begin, end = ("begin", "end") if parted else (bounds.begin, bounds.end)
    loop = [
        *bounds.before,
        *([f"begin, end = share_of({bounds.begin}, {bounds.end}, {kernel.other}_block, SPLIT)"] if parted else []),
        f"for {'visited' if bounds.inside else 'start'} in range({begin}, {end}, {kernel.other}_block):",
        *(_INDENT + line for line in inside),
    ]
    tile = [*before, *sections[BEFORE], *loop, *sections[AFTER]]
    if kernel.looped:
        tile = [*sections[FIRST], *around(kernel, tile), *sections[LAST]]
    part_lines = [f"{tensor} = result_of_part({tensor}, {tensor}_part, SPLIT)" for tensor in parted]
    body = [f'"""{about}"""', *opening(kernel, last), *part_lines, *tile]
    lines = [indented for line in body for indented in _indented(line)]
    head = wrapped(f"def {name}({', '.join(parameters)}):", 0)
    return "\n".join(["@triton.jit", *head, *lines])


def around(kernel: KernelText, lines: list[str]) -> list[str]:
    """The loop over the tiles of a leg."""
    leg, heads = kernel.looped, [leg for leg in kernel.program.heads if leg not in kernel.program.whole]
    first = f"{leg}_part * {leg}_share"
    pair = "batch"
    for head in heads:
        pair = (
            f"({pair} * {head}_programs + {head}_at)" if head != heads[-1] else f"{pair} * {head}_programs + {head}_at"
        )
    loop = f"for {leg}_at in range({first}, tl.minimum({first} + {leg}_share, {leg}_programs)):"
    return [loop, *(_INDENT + line for line in [f"pair = {pair}", *lines])]


def opening(kernel: KernelText, last: bool) -> list[str]:
    """The lines that compute a program's block, batch element and tiles of heads."""
    fixed, rest = kernel.fixed, "lead" if kernel.looped else "pair"
    if fixed in kernel.program.relative:
        n, m = kernel.program.pair
        lines = [f"block, {rest} = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)"]
        lines += [f"first = (block - (tl.cdiv({m}_end, {m}_block) - 1)) * {n}_block", *place_lines(kernel, "first")]
    else:
        lines = [f"block, {rest}, first, {fixed} = block_of(blocks, {fixed}_block, {last})"]
    start = rest
    for leg in reversed([leg for leg in kernel.program.heads if leg not in kernel.program.whole]):
        index, count = (f"{leg}_part", f"{leg}_parts") if leg == kernel.looped else (f"{leg}_at", f"{leg}_programs")
        lines.append(f"{index}, batch = {rest} % {count}, {rest} // {count}")
        rest = "batch"
    lines += ["batch = pair"] if rest == start else []
    return lines + [f"{axis} = tl.arange(0, {axis}_wide)" for axis in kernel.program.widths]


def place_lines(kernel: KernelText, apart: str) -> list[str]:
    """Relative positions of two blocks at this distance; positions before 0 move past the end."""
    m = kernel.program.key
    return [
        line
        for p in kernel.program.relative
        for line in (
            f"{p} = {apart} + {m}_end - {m}_block + tl.arange(0, {p}_block)",
            f"{p} = tl.where({p} < 0, {p}_end, {p})",
        )
    ]


def block_lines(kernel: KernelText) -> list[str]:
    """The index lines of a block in the loop."""
    n, m = kernel.program.pair
    if kernel.fixed in kernel.program.relative:
        return [f"{n} = start + tl.arange(0, {n}_block)", f"{m} = start - first + tl.arange(0, {m}_block)"]
    apart = "first - start" if kernel.fixed == n else "start - first"
    return [f"{kernel.other} = start + tl.arange(0, {kernel.other}_block)", *place_lines(kernel, apart)]


def pair_lines(kernel: KernelText, inside: list[str]) -> list[str]:
    n, m = kernel.program.pair
    distance = f"distance = {kernel.scope.along(n, f'({n} + ({m}_end - {n}_end))')} - {kernel.scope.along(m)}"
    in_bounds = " & ".join(kernel.scope.along(axis, f"({axis} < {axis}_end)") for axis in kernel.scope.pair)
    sides = ", ".join(f"{axis}, {axis}_end" for axis in kernel.scope.pair)
    keys = f"key_mask + batch * key_mask_step[0], key_mask_step[1], KEYS, {kernel.scope.pair.index(m)}"
    lines = [
        *([distance] if any(re.search(r"\bdistance\b", line) for line in inside) else []),
        *([f"in_bounds = {in_bounds}"] if any("in_bounds" in line for line in inside) else []),
        f"visible = in_sight({sides}, {keys})",
    ]
    conditions = edges(kernel) if any("edge" in line for line in inside) else ()
    return lines + [f"edge {'|' if i else ''}= {' | '.join(terms)}" for i, terms in enumerate(conditions) if terms]


def edges(kernel: KernelText) -> Iterator[list[str]]:
    """Conditions under which some pair of a block is hidden: at the ends, and by the masks of boxes."""
    n, m = kernel.program.pair
    first = {n: "start", m: "(start - first)"} if kernel.fixed in kernel.program.relative else {kernel.other: "start"}
    first = {n: "first", m: "first"} | first
    before = [f"({first[m]} < 0)"] if kernel.fixed in kernel.program.relative else []
    mask_terms = ["KEYS", "(MASK > 0)"] if kernel.program.masks else []
    yield [*mask_terms, *before, *(f"({first[axis]} + {axis}_block > {axis}_end)" for axis in (n, m))]
    left = [look.left for look in kernel.program.masks if look.left is not None]
    right = [look.right for look in kernel.program.masks if look.right is not None]
    apart = f"{first[n]} + {m}_end - {n}_end - {first[m]}"
    far = [f"({apart} + {n}_block > {1 + min(left)})"] if left else []
    yield far + ([f"({apart} - {m}_block < {-1 - min(right)})"] if right else [])
    areas = dict.fromkeys(area for look in kernel.program.masks for area in look.hidden)
    yield [f"({edge(area, first, (n, m))})" for area in areas]


def _indented(line: str) -> list[str]:
    indent = len(line) - len(line.lstrip(" "))
    return [" " * (indent + 4) + wrapped_line for wrapped_line in wrapped(line.lstrip(" "), indent + 4)]
