"""Renders a kernel as text: loops and the lines around them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tensornet_attn.emit.triton.bounds import Bounds, edge
from tensornet_attn.emit.triton.kernel import AFTER, BEFORE, FIRST, INSIDE, LAST, KernelText
from tensornet_attn.emit.triton.nodes import WORDS, flat, shape
from tensornet_attn.emit.wrap import wrapped
from tensornet_attn.tiles.loops import Loop, Statement
from tensornet_attn.tiles.model import Node

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


def rendered(text: KernelText, section: int) -> list[str]:
    """The lines of a section, in loops."""
    text.scope.refer = lambda node: text.refer(node, section)
    lines = []
    for carried, start in text.starts.get(section, ()):
        count = text.program.tiles(carried.dims)
        lines.append(f"{carried.name} = {f'({start()},) * {count}' if carried.dims else start()}")
    return [*lines, *block(text, text.loops.get(section, []), (), section)]


def block(text: KernelText, items: Iterable[Loop | Statement], path: tuple[Loop, ...], section: int) -> list[str]:
    found = []
    for item in items:
        if isinstance(item, Loop):
            found += loop_lines(text, item, path, section)
        elif item.over:
            found += added(text, item)
        else:
            found += item.lines()
    return found


def added(text: KernelText, one: Statement) -> list[str]:
    """The line that adds a value to a sum over a variable."""
    (node,) = one.makes
    (arg,) = (text.scope.instead.get(arg, arg) for arg in node.args)
    x, name = text.scope.ref(arg, node.axes), sum_of(text, one)
    about = f"  # {' '.join(node.axes) or 'a number'}"
    if not one.inner:
        return [UPDATE[one.how].format(name=name, x=x) + about]
    place = flat(one.inner, [text.program.nodes.sizes[variable] for variable in one.inner])
    return [f"{name}_next += ({JOINED[one.how].format(name=f'{name}[{place}]', x=x)},){about}"]


def sum_of(text: KernelText, one: Statement) -> str:
    """The name of an accumulator: that of its node, unless that names a tuple."""
    (node,) = one.makes
    section = next(section for section, own in text.made.items() if one in own)
    name, dims = text.names[node, section], text.dims[node, section]
    return f"{name}_sum" if len(dims) > len(one.inner) else name


def loop_lines(text: KernelText, loop: Loop, path: tuple[Loop, ...], section: int) -> list[str]:
    inside, depth = [*loop.statements()], len(path)
    before, begin, end, after = [], [], [], []
    for one in inside:
        outermost = next((i for i, own in enumerate(one.path) if own.variable != text.rolled), None)
        for carried in one.carried:
            if carried.dims and outermost == depth:
                before.append(f"{carried.name}_next = ()")
                after.append(f"{carried.name} = {carried.name}_next")
        for node in one.makes:
            dims = text.dims[node, section]
            outer = dims[: len(dims) - len(one.inner)]
            if outer and one.known[len(one.known) - len(outer)] is loop:
                before.append(f"{text.names[node, section]} = ()")
        if one.over and loop is one.path[len(one.known)]:
            (node,) = one.makes
            name, count = sum_of(text, one), text.program.tiles(one.inner)
            start = zeros(text, node, one.how)
            before.append(f"{name} = {f'({start},) * {count}' if one.inner else start}")
            if one.inner:
                begin.append(f"{name}_next = ()")
                end.append(f"{name} = {name}_next")
            if name != text.names[node, section]:
                after.append(f"{text.names[node, section]} += {name if one.inner else f'({name},)'}")
    size = text.program.nodes.sizes[loop.variable]
    kind = "range" if loop.variable == text.rolled else "tl.static_range"
    body = [*begin, *block(text, loop.items, (*path, loop), section), *end]
    head = [f"for {loop.variable} in {kind}({size}):"]
    if loop.variable == text.scope.fours:
        head = [f"for {loop.variable}_four in range({size // WORDS}):"]
        head += [f"    for {loop.variable}_word in tl.static_range({WORDS}):"]
        body = [
            _INDENT + line
            for line in [f"{loop.variable} = {loop.variable}_four * {WORDS} + {loop.variable}_word", *body]
        ]
    if text.again and section == INSIDE and loop.variable == text.ranged:
        before.append(f"{_BARRIER}  # recompute instead of keeping values in registers")
    return [*before, *head, *(_INDENT + line for line in body), *after]


def zeros(text: KernelText, node: Node, how: str) -> str:
    sides = shape(text.program, text.scope.sides(node.axes))
    if how == "any":
        return f"tl.zeros({sides}, tl.int1)"
    return f"tl.zeros({sides}, SUMS)" if how == "add" else f"tl.full({sides}, {START[how]}, SUMS)"


def source(
    text: KernelText,
    name: str,
    about: str,
    parameters: Iterable[str],
    bounds: Bounds,
    last: bool,
    parted: Sequence[str] = (),
) -> str:
    """The function; `last`: the last blocks have the longest loops and start first.

    `parted`: the results that a program writes for its part of the keys, if several programs share them.
    """
    text.scope.before = before = list[str]()
    sections = {section: rendered(text, section) for section in (FIRST, BEFORE, INSIDE, AFTER, LAST)}
    inside = sections[INSIDE]
    if text.crowded and any("scalar(" in line for line in inside):
        inside.insert(0, f"{_BARRIER}  # reload scalars per block instead of keeping them")
    inside = [*block_lines(text), *pair_lines(text, inside), *inside]
    inside = [bounds.inside, *inside] if bounds.inside else inside
    begin, end = ("begin", "end") if parted else (bounds.begin, bounds.end)
    loop = [
        *bounds.before,
        *([f"begin, end = share_of({bounds.begin}, {bounds.end}, {text.other}_block, SPLIT)"] if parted else []),
        f"for {'visited' if bounds.inside else 'start'} in range({begin}, {end}, {text.other}_block):",
        *(_INDENT + line for line in inside),
    ]
    tile = [*before, *sections[BEFORE], *loop, *sections[AFTER]]
    if text.looped:
        tile = [*sections[FIRST], *around(text, tile), *sections[LAST]]
    places = [f"{one} = result_of_part({one}, {one}_part, SPLIT)" for one in parted]
    body = [f'"""{about}"""', *opening(text, last), *places, *tile]
    lines = [part for line in body for part in _indented(line)]
    head = wrapped(f"def {name}({', '.join(parameters)}):", 0)
    return "\n".join(["@triton.jit", *head, *lines])


def around(text: KernelText, lines: list[str]) -> list[str]:
    """The loop over the tiles of a leg."""
    leg, heads = text.looped, [leg for leg in text.program.heads if leg not in text.program.whole]
    first = f"{leg}_part * {leg}_share"
    pair = "batch"
    for own in heads:
        pair = f"({pair} * {own}_programs + {own}_at)" if own != heads[-1] else f"{pair} * {own}_programs + {own}_at"
    loop = f"for {leg}_at in range({first}, tl.minimum({first} + {leg}_share, {leg}_programs)):"
    return [loop, *(_INDENT + line for line in [f"pair = {pair}", *lines])]


def opening(text: KernelText, last: bool) -> list[str]:
    """The lines that compute a program's block, batch element and tiles of heads."""
    f, rest = text.fixed, "lead" if text.looped else "pair"
    if f in text.program.relative:
        n, m = text.program.query, text.program.key
        lines = [f"block, {rest} = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)"]
        lines += [f"first = (block - (tl.cdiv({m}_end, {m}_block) - 1)) * {n}_block", *place_lines(text, "first")]
    else:
        lines = [f"block, {rest}, first, {f} = block_of(blocks, {f}_block, {last})"]
    start = rest
    for leg in reversed([leg for leg in text.program.heads if leg not in text.program.whole]):
        own, count = (f"{leg}_part", f"{leg}_parts") if leg == text.looped else (f"{leg}_at", f"{leg}_programs")
        lines.append(f"{own}, batch = {rest} % {count}, {rest} // {count}")
        rest = "batch"
    lines += ["batch = pair"] if rest == start else []
    return lines + [f"{axis} = tl.arange(0, {axis}_wide)" for axis in text.program.widths]


def place_lines(text: KernelText, apart: str) -> list[str]:
    """Relative positions of two blocks at this distance; positions before 0 move past the end."""
    m = text.program.key
    return [
        line
        for p in text.program.relative
        for line in (
            f"{p} = {apart} + {m}_end - {m}_block + tl.arange(0, {p}_block)",
            f"{p} = tl.where({p} < 0, {p}_end, {p})",
        )
    ]


def block_lines(text: KernelText) -> list[str]:
    """The index lines of a block in the loop."""
    n, m = text.program.query, text.program.key
    if text.fixed in text.program.relative:
        return [f"{n} = start + tl.arange(0, {n}_block)", f"{m} = start - first + tl.arange(0, {m}_block)"]
    apart = "first - start" if text.fixed == n else "start - first"
    return [f"{text.other} = start + tl.arange(0, {text.other}_block)", *place_lines(text, apart)]


def pair_lines(text: KernelText, inside: list[str]) -> list[str]:
    n, m = text.program.query, text.program.key
    distance = f"distance = {text.scope.along(n, f'({n} + ({m}_end - {n}_end))')} - {text.scope.along(m)}"
    in_bounds = " & ".join(text.scope.along(axis, f"({axis} < {axis}_end)") for axis in text.scope.pair)
    sides = ", ".join(f"{axis}, {axis}_end" for axis in text.scope.pair)
    keys = f"key_mask + batch * key_mask_step[0], key_mask_step[1], KEYS, {text.scope.pair.index(m)}"
    found = [
        *([distance] if any(re.search(r"\bdistance\b", line) for line in inside) else []),
        *([f"in_bounds = {in_bounds}"] if any("in_bounds" in line for line in inside) else []),
        f"visible = in_sight({sides}, {keys})",
    ]
    found_edges = edges(text) if any("edge" in line for line in inside) else ()
    return found + [f"edge {'|' if i else ''}= {' | '.join(parts)}" for i, parts in enumerate(found_edges) if parts]


def edges(text: KernelText) -> Iterator[list[str]]:
    """Conditions under which some pair of a block is hidden: at the ends, and by the masks of boxes."""
    n, m = text.program.pair
    first = {n: "start", m: "(start - first)"} if text.fixed in text.program.relative else {text.other: "start"}
    first = {n: "first", m: "first"} | first
    before = [f"({first[m]} < 0)"] if text.fixed in text.program.relative else []
    given = ["KEYS", "(MASK > 0)"] if text.program.masks else []
    yield [*given, *before, *(f"({first[axis]} + {axis}_block > {axis}_end)" for axis in (n, m))]
    left = [look.left for look in text.program.masks if look.left is not None]
    right = [look.right for look in text.program.masks if look.right is not None]
    apart = f"{first[n]} + {m}_end - {n}_end - {first[m]}"
    far = [f"({apart} + {n}_block > {1 + min(left)})"] if left else []
    yield far + ([f"({apart} - {m}_block < {-1 - min(right)})"] if right else [])
    areas = dict.fromkeys(area for look in text.program.masks for area in look.hidden)
    yield [f"({edge(area, first, (n, m))})" for area in areas]


def _indented(line: str) -> list[str]:
    own = len(line) - len(line.lstrip(" "))
    return [" " * (own + 4) + part for part in wrapped(line.lstrip(" "), own + 4)]
