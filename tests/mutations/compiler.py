"""Mutations of the language, the checker, the reference, rewriting, costs, planning, and the text of modules."""

from __future__ import annotations

from tests.mutations.model import Mutation

PLAIN = "designs/test_designs.py::test_a_design_equals_its_plain_loops"
TILES = "triton/test_region_designs.py::test_values_and_gradients"
RULE = "rewrite/test_rules.py::test_a_rule_alone"
SCORES = "rewrite/test_scores.py::test_rewritten_designs_are_the_same_function"
SUMMED = "plan/test_linear.py::test_the_keys_are_summed_first_and_the_result_is_the_same"
DECAYING = "plan/test_decay.py::test_the_keys_are_summed_first_and_the_result_is_the_same"

COMPILER = (
    # The language and the checker
    Mutation(
        "ir/arithmetic.py",
        'return Negative(inner) if sign == "-" else inner',
        "return inner",
        "A sign in front of a number is lost.",
        ("spec/test_language.py::test_sizes_follow_python",),
    ),
    Mutation(
        "ir/arithmetic.py",
        "parse_sum(stream, _BINDING[op] + 1)",
        "parse_sum(stream, _BINDING[op])",
        "a - b - c is read as a - (b - c).",
        ("spec/test_language.py::test_sizes_follow_python",),
    ),
    Mutation(
        "spec/sizes.py",
        '"size": 2 * size + 1',
        '"size": 2 * size',
        "A table of relative positions has one entry too few.",
        ("spec/test_language.py::test_every_kind_of_leg_and_its_resolved_size",),
    ),
    Mutation(
        "ops/map.py",
        "return row(box).zero([evaluate(tree, graph.values) for tree in arguments(box)])",
        "return True",
        "The checker lets later keys through where a map makes zeros into other numbers.",
        ("graph/test_check_causal.py::test_a_leak_is_found",),
    ),
    Mutation(
        "graph/hidden.py",
        "return seen if OPS[box.kind].runs_along else _both(seen, step_seen)",
        "return step_seen",
        "What a mask hides from a softmax is not hidden before the maps in front of it.",
        ("graph/test_hidden.py::test_what_is_seen", "test_hidden.py::test_every_map_in_every_box"),
    ),
    Mutation(
        "graph/signs.py",
        "coefficients[1] ** 2 < 4 * coefficients[0] * coefficients[2]",
        "coefficients[1] ** 2 > 4 * coefficients[0] * coefficients[2]",
        "A polynomial with roots is taken for one that is never negative, and the warning is lost.",
        ("graph/test_signs.py",),
    ),
    # The reference
    Mutation(
        "ops/masks.py",
        "(query - key).abs() <= width",
        "(query - key).abs() < width",
        "A band is narrower than it says.",
        (f"{PLAIN}[band-False-reference]",),
    ),
    Mutation(
        "ops/delta_rule.py",
        "(v[position] - dot(S, key))",
        "(v[position])",
        "The delta rule adds and takes nothing away.",
        (f"{PLAIN}[fast_weight2-True-reference]",),
    ),
    Mutation(
        "ops/rope.py",
        "turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)",
        "turned = torch.cat((a * cos + b * sin, b * cos - a * sin), -1)",
        "Rotary positions turn the other way, which scores alone do not show.",
        ("test_reference_boxes.py::test_rope_turns_pairs_by_the_position",),
    ),
    # Rewriting
    Mutation(
        "rewrite/simplify.py",
        "if hidden_areas((mask,), graph.values))",
        "if mask.arguments)",
        "A mask without a number, such as causal, is dropped together with one that hides nothing.",
        (f"{RULE}[mask of all]",),
    ),
    Mutation(
        "rewrite/scores.py",
        "{a * X + b * Y} F",
        "{a * X + a * Y} F",
        "Two products with the same keys are gathered with the coefficient of one of them.",
        (f"{SCORES}[False-gathered with signs]",),
    ),
    Mutation(
        "rewrite/relu.py",
        "negative = Contraction((minus(use),))",
        "negative = Contraction((replace(minus(use), coefficient=ONE),))",
        "relu of a product loses the part where both factors are negative.",
        (f"{RULE}[relu of a weight]",),
    ),
    Mutation(
        "rewrite/relu.py",
        " and not graph.masked(reader)",
        "",
        "A sum over visible keys becomes a product over all of them.",
        ("rewrite/test_rules.py::test_a_relu_stays_in_a_sum_that_masks_act_in",),
    ),
    Mutation(
        "rewrite/change.py",
        "terms[term_index : term_index + 1] = expansion[0]",
        "terms[term_index : term_index + 1] = expansion[0][:1]",
        "A product with a sum keeps the first term of the sum alone.",
        (f"{RULE}[distribution]",),
    ),
    # Costs
    Mutation(
        "kernels/attention.py",
        "return both if scene.size(both[0]) == scene.size(both[1]) else [wider, wider]",
        "return both[:1] if scene.size(both[0]) == scene.size(both[1]) else [wider]",
        "The cost of fused attention leaves out the product with the values.",
        ("cost/test_cost.py::test_work",),
    ),
    Mutation(
        "cost/work.py",
        "if b.name in self.scene.learned",
        "if a.name in self.scene.learned",
        "What the backward keeps is counted for the wrong factor.",
        ("cost/test_cost.py::test_a_frozen_weight_saves_no_input",),
    ),
    Mutation(
        "kernels/linear.py",
        "macs[(query, *read, *recurrence.result)] += chunk",
        "pass",
        "The cost of causal linear attention leaves out what scores inside a chunk read.",
        ("cost/test_linear.py::test_formulas[linear-True]",),
    ),
    Mutation(
        "kernels/experts.py",
        "count if leg == product.expert else leg",
        "leg",
        "A product with chosen experts costs what all experts cost.",
        ("cost/test_experts.py::test_the_formula_has_the_number_of_chosen_experts",),
    ),
    Mutation(
        "cost/devices.py",
        "max(flops * self.bandwidth, moved * self.rate)",
        "min(flops * self.bandwidth, moved * self.rate)",
        "A step takes the lesser of its work and its traffic.",
        ("cost/test_devices.py::test_a_balance_of_each",),
    ),
    # Forms
    Mutation(
        "graph/attention.py",
        "or bool({self.of.name, self.box.name} & self.graph.results)",
        "",
        "A map that is the output counts as read by the values alone.",
        ("plan/test_ways.py::test_linear_memory_names_the_region_and_the_reasons",),
    ),
    Mutation(
        "graph/attention.py",
        "SIDES = ((True, False), (False, True),",
        "SIDES = ((False, True), (True, False),",
        "Factors of queries count as those of keys.",
        ("graph/test_forms.py::test_the_fields_say_what_the_diagram_says",),
    ),
    # Planning
    Mutation(
        "rewrite/fused.py",
        "dropout, attention.written,",
        "dropout, (),",
        "Fused attention forgets the design's own mask.",
        ("plan/test_band.py::test_refused_with_the_reason_and_still_right[too wide]",),
    ),
    Mutation(
        "runtime/sink.py",
        "return *gradients, d_sink.to(sink.dtype)",
        "return *gradients, -d_sink.to(sink.dtype)",
        "A sink learns the wrong way.",
        ("ops/test_softmax.py::test_values_and_gradients_of_some[fused-heads-causal and window(2, 0)-True]",),
    ),
    Mutation(
        "kernels/experts.py",
        "lowered = lowered_rewritten if len(lowered_rewritten.chosen) > len(lowered.chosen) else lowered",
        "lowered = lowered",
        "Experts are all computed where a norm stands behind the choice.",
        ("ops/test_topk.py::test_the_chosen_experts_alone_are_computed[deepseek]",),
    ),
    Mutation(
        "cost/price.py",
        "KEEPS, AGAIN = (3, 3), (4, 3)",
        "KEEPS, AGAIN = (1, 1), (1, 1)",
        "A training step is priced like a forward.",
        ("plan/test_price.py::test_a_longer_run_takes_longer_and_a_backward_more",),
    ),
    Mutation(
        "cost/target.py",
        '"decoding": Workload(1, 4096, backward=False)',
        '"decoding": Workload(4096, 4096, backward=False)',
        "Decoding is planned for as many queries as keys, and no weights are absorbed.",
        ("plan/test_absorb.py::test_mla_at_decoding_attends_to_its_latent",),
    ),
    Mutation(
        "kernels/linear.py",
        "terms.append(replace(term, query=",
        "terms.append(replace(term, coefficient=ONE, query=",
        "Linear attention loses the coefficients of its scores.",
        (f"{SUMMED}[scaled, with eps-False]",),
    ),
    Mutation(
        "graph/recurrence.py",
        "term if graph.key not in sides else negated(term)",
        "term",
        "Scores grow by the numbers of keys that they should decay by.",
        (f"{DECAYING}[by numbers of a query and of a key]",),
    ),
    Mutation(
        "plan/carried.py",
        "terms = (Term(ONE, decayed), ",
        "terms = (",
        "A state forgets what was before the chunk.",
        ("nn/test_cache.py::test_chunks_of_some[lfish]",),
    ),
    Mutation(
        "cost/decoding.py",
        "floats = floats if name in wanted or name in graph.step else LAST",
        "floats = floats",
        "A cache keeps inputs where keys and values would do.",
        (
            "nn/test_cache.py::test_what_is_kept_is_what_the_cost_says[mhsa]",
            "cost/test_decoding.py::test_what_is_kept[mhsa-65536]",
        ),
    ),
    Mutation(
        "plan/normalized.py",
        "() if eps == Number(0) else (Term(eps, ()),)",
        "()",
        "A normalised blend of maps loses its eps.",
        ("plan/test_normalized.py::test_no_map_of_a_normalized_blend_is_made[with eps-False]",),
    ),
    Mutation(
        "tiles/derive.py",
        "self.nodes.add([gradient, self.nodes.mul(self.minus, rows)])",
        "gradient",
        "The gradient of a softmax in tiles lacks the sum of A dA.",
        (f"{TILES}[19-mhsa]",),
    ),
    Mutation(
        "tiles/program.py",
        "Number(1 / self.sizes[variable] if variable else 1)",
        "Number(1)",
        "A mean over heads in tiles is a sum.",
        ("triton/test_regions.py::test_every_kind_of_call[less the mean of the heads]",),
    ),
    Mutation(
        "ops/maps.py",
        '_TANH, "{d} * (1 - {y} * {y})"',
        '_TANH, "{d} * (1 + {y} * {y})"',
        "The gradient of tanh in tiles has a wrong sign.",
        ("triton/test_hidden.py::test_every_map_in_every_box[logsumexp over tanh, a map of it, boolean]",),
    ),
    # The text of modules
    Mutation(
        "emit/writer.py",
        'f"-{expression}" if constant == -1',
        "expression if constant == -1",
        "A coefficient of -1 is written as nothing.",
        (f"{PLAIN}[differential-False-torch]",),
    ),
    Mutation(
        "graph/visibility.py",
        "complement(areas) if row.exact else EVERYWHERE",
        "complement(areas)",
        "A mask that is not is taken to hide all of where the mask may show something.",
        ("graph/test_visibility.py::test_no_pair_that_a_formula_shows_or_hides_is_outside",),
    ),
    Mutation(
        "emit/masks.py",
        'return " & ".join(calls)',
        'return " | ".join(calls)',
        "Of two masks of a design one is enough to look.",
        ("plan/test_blockwise.py::test_the_result_is_the_same[5-5-the mean and the sum over keys]",),
    ),
    Mutation(
        "kernels/attention.py",
        'options += [f"causal={causal}"] if causal != "False" else []',
        "options += []",
        "Fused attention of a causal design sees later keys.",
        (f"{PLAIN}[mhsa-True-torch]",),
    ),
    Mutation(
        "tiles/rows.py",
        'args[0] = self.nodes.scaled(args[0], numbers["scale"], f"{step.name}.of")',
        "pass",
        "Attention in blocks of queries loses the scale of its softmax.",
        (f"{PLAIN}[transformer_xl-False-torch]", f"{PLAIN}[talking_heads-False-torch]"),
    ),
    Mutation(
        "tiles/derive.py",
        "if variable not in node.heads:",
        "if variable not in node.heads and variable not in self.program.exit.index:",
        "The gradient of what heads share lacks the sum over the heads of the result.",
        ("triton/test_region_designs.py::test_values_and_gradients[19-fish]",),
    ),
    Mutation(
        "emit/triton/forward.py",
        "{kernel.entry(out)} * {rows}{sides} + ",
        "{kernel.entry(out)} + ",
        "A kernel adds blocks of keys whose maps lack different factors.",
        (f"{TILES}[19-mhsa]", "triton/test_regions.py::test_lengths[64]"),
    ),
    Mutation(
        "emit/triton/bounds.py",
        "{'+' if queries else '-'} {apart}",
        "{'-' if queries else '+'} {apart}",
        "With fewer queries than keys a kernel loops over the wrong blocks.",
        ("triton/test_regions.py::test_two_lengths",),
    ),
    Mutation(
        "compiler.py",
        'all(verdict == "" for verdict in verdicts)',
        'all(verdict != "x" for verdict in verdicts)',
        "Kernels that were never compared with the reference are chosen by auto.",
        ("verify/test_kernels.py::test_a_library_is_compared_once_and_auto_takes_no_other",),
    ),
    Mutation(
        "verify/kernels.py",
        "((67, 261, 1)",
        "((67, 61, 1)",
        "Kernels are compared with the reference in one tile of keys only.",
        ("verify/test_kernels.py::test_a_wrong_library_is_reported_and_never_used[second_tile]",),
    ),
    Mutation(
        "runtime/maps.py",
        "chosen = chosen if keep is None else chosen & keep",
        "chosen = chosen",
        "A hidden key is among the best keys of a query.",
        ("ops/test_topk.py::test_hidden_keys_are_never_chosen",),
    ),
    Mutation(
        "emit/leaves.py",
        'dtype = writer.call("wide_dtype", f"{like}.dtype") if tensor.name in writer.wide else f"{like}.dtype"',
        'dtype = f"{like}.dtype"',
        "Constants that decay are rounded to half precision.",
        ("relations/test_precision.py::test_kinds_are_as_exact_with_a_cache[retnet]",),
    ),
)
