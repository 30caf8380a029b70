"""Emits kernel 'tiles': the Triton kernels of a region, and the call that launches them."""

from __future__ import annotations

from tensornet_attn.emit.functions import names as function_names
from tensornet_attn.emit.masks import takes_mask
from tensornet_attn.emit.triton.kernels import kernels
from tensornet_attn.emit.triton.region import Region
from tensornet_attn.emit.wrap import WIDTH, filled
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import Step
from tensornet_attn.tiles.build import tile_program
from tensornet_attn.tiles.model import Operand, Program, structure

_INDENT = "    "


def emit_tiles(writer: Writer, step: Step) -> None:
    """Emits the call; the kernels are added beside the class, unless an earlier call has the same."""
    assert step.kernel is not None
    graph, program = writer.graph, tile_program(writer.graph, step)
    own = structure(program)
    made = next((made for known, made in writer.regions if known == own), None)
    if made is None:
        name = writer.names.fresh(f"{writer.local[step.name]}_tiles")
        made = Region(graph, program, name, ", ".join(step.kernel.steps), function_names())
        writer.regions.append((own, made))
        if program.sums_powers:
            made.biased = _biased(writer, step, made)
        regions = [one for one in (made.biased, made) if one is not None]
        writer.functions |= {"region", "tiled", "\n\n\n".join(_source(one, kernels(one)) for one in regions)}
    writer.about(f"{', '.join(step.kernel.steps)}: Triton kernels, recomputed in the backward")
    writer.named(step.name, writer.call("tiled", *_arguments(writer, made, program)), program.legs)


def _biased(writer: Writer, step: Step, made: Region) -> Region:
    """The region for calls with a float mask; coefficients are those of both."""
    program, name = tile_program(writer.graph, step, biased=True), writer.names.fresh(f"{made.name}_biased")
    kernels(made)
    return Region(writer.graph, program, name, f"{made.about}, with a float mask", function_names(), made.numbers)


def _arguments(writer: Writer, made: Region, program: Program) -> list[str]:
    graph = writer.graph
    operands = ", ".join(_operand(writer, program, operand) for operand in program.operands)
    lengths = [writer.length(graph.query), writer.length(graph.key)]
    found = [made.name, f"[{operands}]", *lengths, f"({writer.batch_shape},)"]
    found += ["mask" if program.masks and takes_mask(graph) else "None", "key_mask" if program.masks else "None"]
    numbers = [writer.number(tree, traced=False) for tree in made.numbers]
    found += [f"[{', '.join(numbers)}]"] if numbers else []
    if made.random:
        always = any(tensor.always for tensor in graph.of_role("noise"))
        found.append(f"training={'True' if always else 'self.training'}")
    return found


def _operand(writer: Writer, program: Program, operand: Operand) -> str:
    tensor = writer.graph.tensor.get(operand.use.name)
    if tensor is not None and tensor.role == "noise" and operand.axes == (program.query, program.key):
        order = tuple(operand.use.legs.index(leg) for leg in operand_legs(program, operand))
        return writer.call("given_noise", "noise", f'"{operand.use.name}"', str(order))
    return writer.value(operand.use).arranged(operand_legs(program, operand)).text


def operand_legs(program: Program, operand: Operand) -> tuple[str, ...]:
    """The legs of an operand in the order in which kernels read it: heads, sequence, width."""
    own = [leg for axis in operand.axes for leg in program.widths.get(axis, (axis,))]
    return (*operand.heads, *own)


def _tables(made: Region) -> tuple[str, ...]:
    """The operands that are indexed by the distance of query and key."""
    pairs = zip(made.operands, made.program.operands, strict=True)
    return tuple(name for name, operand in pairs if operand.table)


def _normalized(made: Region) -> tuple[int, ...]:
    """The tiles of maps whose rows are divided by plain sums."""
    kinds = [one.op for one in made.program.maps for _ in range(made.program.tiles(one.heads))]
    return tuple(i for i, kind in enumerate(kinds) if kind == "normalize")


def _source(made: Region, sources: dict[str, str]) -> str:
    """The kernels, and their registration for `tiled`."""
    program = made.program
    legs = {name: " ".join(operand_legs(program, o)) for name, o in zip(made.operands, program.operands, strict=True)}
    sizes = {leg: made.graph.leg[leg].size for leg in program.heads}
    left, right = made.reach()
    found = {
        "sides": (program.query, program.key),
        "operands": legs,
        "heads": program.heads,
        "widths": {axis: " ".join(own) for axis, own in program.widths.items()},
        "result": " ".join(program.legs),
        "others": " ".join(program.others),
        "sizes": sizes,
        "reads": made.reads,
        "live": made.live,
        "whole": tuple(leg for leg in program.heads if leg in program.whole),
        "relative": "".join(program.relative),
        "tables": _tables(made),
        "normalized": _normalized(made),
        "log": program.exit.log,
        "random": made.random,
        "noise": tuple(made.operands[i] for i in made.noise),
        "loops": made.loops,
        "sums": {kind: count for kind, count in made.sums.items() if count},
        **{
            name: {kind: " ".join(own) for kind, own in getattr(made, name).items() if own}
            for name in ("accumulators", "resident", "streamed", "temporaries")
        },
        "band": left + right + 1 if left is not None and right is not None else 0,
    }
    arguments = [
        f'f"{{__name__}}.{made.name}"',
        *(f"{name}={value!r}" for name, value in found.items() if value),
        f"kernels={{{', '.join(f'{kind!r}: {made.name}_{kind}' for kind in sources)}}}",
    ]
    if made.biased is not None:
        arguments.append(f"biased={made.biased.name}")
    lines = [_INDENT + line for line in filled((f"{argument}," for argument in arguments), WIDTH - len(_INDENT))]
    call = "\n".join([f"{made.name} = region(", *lines, ")"]).replace("'", '"')
    return "\n\n\n".join([*sources.values(), call])
