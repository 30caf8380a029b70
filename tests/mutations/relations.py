"""Mutations that the relations alone catch: what a mask, a cache, a pack or an empty call forgets in silence."""

from __future__ import annotations

from tests.mutations.model import Mutation

FOUND = "relations/test_relations.py::test_found_designs"
SHIPPED = "relations/test_relations.py::test_shipped_designs"

RELATIONS = (
    Mutation(
        "rewrite/hidden.py",
        "new_uses = self.with_zeros(step, new_uses) if step.name in self.counting else new_uses",
        "new_uses = [*new_uses]",
        "A product that sums the keys counts those that a key mask hides.",
        (f"{FOUND}[features_of_keys-torch]",),
    ),
    Mutation(
        "tiles/cpp/totals.py",
        'return [f"if ({first}) {line}" if first else line]',
        "return [line]",
        "A C++ kernel rescales a sum once for each leg that it sums besides the keys.",
        ("relations/test_relations.py::test_joint_legs_in_cpp",),
    ),
    Mutation(
        "nn/packed.py",
        "visible_by_group = [None] * len(groups) if row.key_mask is None else on_keys.split(row.key_mask, 0)",
        "visible_by_group = [None] * len(groups) if row.key_mask is None else on_keys.split(row.key_mask.roll(1), 0)",
        "The key mask of a packed call is off by one.",
        (f"{SHIPPED}[mhsa]", f"{SHIPPED}[gqa]", f"{SHIPPED}[mqa]"),
    ),
    Mutation(
        "nn/module.py",
        "inputs = self._signature.ordered(inputs, named, cache is not None and cache.length > 0)",
        "inputs = self._signature.ordered(inputs, named)",
        "A step with a cache asks for its memory again if inputs are given by name.",
        (f"{FOUND}[met_directly-torch]",),
    ),
    Mutation(
        "runtime/draw.py",
        "if all(x.numel() > 0 for x in (value, *inputs)):",
        "if value.numel() > 0:",
        "A training call of length 0 destroys a state.",
        (f"{SHIPPED}[mgk_em]",),
    ),
    Mutation(
        "runtime/maps.py",
        "return x.mean(-1) if x.shape[-1] else x.sum(-1)",
        "return x.mean(-1)",
        "The mean of no keys is NaN.",
        (f"{FOUND}[mean_of_keys-torch]",),
    ),
    Mutation(
        "runtime/precision.py",
        "return torch.promote_types(dtype, torch.float32)",
        "return dtype",
        "States and sums of decays are kept in half precision.",
        ("relations/test_precision.py::test_kinds_are_as_exact_with_a_cache",),
    ),
    Mutation(
        "plan/decoding.py",
        "along = box is not None and (box.leg == graph.query or OPS[box.kind].recurrent)",
        "along = box is not None and box.leg == graph.query",
        "Chunks of queries read a recurrence over a memory at other positions than the whole.",
        (f"{FOUND}[recurrence_over_memory-torch]",),
    ),
    Mutation(
        "plan/decoding.py",
        "cached = self.whole.memory and name in self.whole.kept and name != self.value",
        "cached = False",
        "A cache does not give back the rows of a memory that queries meet as they are.",
        (f"{FOUND}[met_directly-torch]",),
    ),
    Mutation(
        "ops/conv.py",
        "elif hides_rows(run.graph, box):",
        "elif hides_rows(run.graph, box) and run.key_mask is None:",
        "A convolution along the queries reads rows that a key mask hides.",
        (f"{FOUND}[convolved_queries-reference]",),
    ),
    Mutation(
        "nn/tokens.py",
        "places = {} if counted else {padding.between: PLACES[2]}",
        "places = dict[str | None, str]()",
        "Padding between tokens moves positions.",
        (f"{SHIPPED}[band]", f"{SHIPPED}[fox]"),
    ),
    Mutation(
        "graph/precision.py",
        "{*wide_names, *graph.wide, ",
        "{*wide_names, ",
        "A part of a step rounds what the design keeps in float32.",
        ("relations/test_precision.py::test_parts_of_a_step_keep_wide_what_the_design_keeps_wide",),
    ),
    Mutation(
        "runtime/softmax.py",
        "if logarithms and bias is not None:",
        "if False:",
        "Fused attention of key mixtures reads float masks that absorb what tells the keys apart.",
        ("relations/test_relations.py::test_shipped_designs[mgk]",),
    ),
    Mutation(
        "emit/precision.py",
        "if writer.graph.output not in writer.wide:",
        "if True:",
        "A half layer returns a logarithm in float32.",
        ("relations/test_log_of_nothing.py::test_one_number_in_each_dtype[dtype0-decoding]",),
    ),
    Mutation(
        "runtime/blockwise.py",
        "if leg.rows and 1 != x.shape[leg.rows] != n:",
        "if leg.rows and x.shape[leg.rows] not in (1, n):",
        "A known length is looked up among traced ones, which torch compares by identity.",
        ("relations/test_relations.py::test_layers_share_a_trace[transformer_xl]",),
    ),
    Mutation(
        "rewrite/hidden.py",
        "(self.infinite(use) or self.overflows(step, use, term.factors))",
        "self.infinite(use)",
        "A product of rows that overflows at hidden pairs multiplies the zeros of a softmax.",
        (f"{SHIPPED}[mhsa]", f"{SHIPPED}[alibi]"),
    ),
)
