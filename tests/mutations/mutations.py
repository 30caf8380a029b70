"""Forty and more mistakes that could be made in the compiler, each with the tests that catch it.

Each is one change of the text of one file: a sign, a scale, a mask, an axis, a lost term, a wrong gradient, a price.
The tests are those of what a user sees: outputs, gradients, messages, figures. Where a test is rewritten or goes, these
must still be caught: `python -m tests.mutations` makes each change in a copy of the tree and runs its tests there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutation:
    """`old`, which stands once in `file` (below tensornet_attn/), becomes `new`: that `breaks` something.

    `tests`: one of these fails then; pytest's node ids below tests/, or a module of the package whose examples run.
    """

    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        return Path("tensornet_attn") / self.file

    @property
    def nodes(self) -> tuple[str, ...]:
        """The tests as pytest is told them, from the root of the repository."""
        return tuple(test if test.startswith("tensornet_attn/") else f"tests/{test}" for test in self.tests)

    @property
    def interpreted(self) -> bool:
        """Whether kernels run, in Triton's interpreter."""
        return any(test.startswith("triton/") for test in self.tests)

    def applied(self, text: str) -> str:
        """The text of the file with the change. Raises ValueError where `old` does not stand there once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.path}: {self.old!r} stands {text.count(self.old)} times, not once.")
        return text.replace(self.old, self.new)


PLAIN = "designs/test_designs.py::test_a_design_equals_its_plain_loops"
KEYS = "designs/test_designs.py::test_keys_may_be_masked_even_all_of_a_row"
CROSS = "designs/test_designs.py::test_cross_attention_puts_the_last_query_at_the_last_key"
TILES = "triton/test_region_designs.py::test_values_and_gradients"
CALLS = "triton/test_regions.py::test_every_kind_of_call"
RULE = "rewrite/test_rules.py::test_a_rule_alone"
SCORES = "rewrite/test_scores.py::test_rewritten_designs_are_the_same_function"
SUMMED = "plan/test_linear.py::test_the_keys_are_summed_first_and_the_result_is_the_same"
DECAYING = "plan/test_fading.py::test_the_keys_are_summed_first_and_the_result_is_the_same"
MOVES = "search/test_moves.py::test_moves_make_shipped_designs"

MUTATIONS = (
    # The language and the checker
    Mutation(
        "spec/arithmetic.py",
        'return Negative(inner) if sign == "-" else inner',
        "return inner",
        "A sign in front of a number is lost.",
        ("spec/test_language.py::test_sizes_follow_python",),
    ),
    Mutation(
        "spec/arithmetic.py",
        "parse_sum(stream, _BINDING[op] + 1)",
        "parse_sum(stream, _BINDING[op])",
        "a - b - c is read as a - (b - c).",
        ("spec/test_language.py::test_sizes_follow_python",),
    ),
    Mutation(
        "spec/sizes.py",
        '"size": 2 * value + 1',
        '"size": 2 * value',
        "A table of relative positions has one entry too few.",
        ("spec/test_language.py::test_every_kind_of_leg_and_its_resolved_size",),
    ),
    Mutation(
        "graph/causal.py",
        "return function.name in _KEEP_ZEROS",
        "return True",
        "The checker lets later keys through where a map makes zeros into other numbers.",
        ("graph/test_check_causal.py::test_a_leak_is_found",),
    ),
    Mutation(
        "graph/hidden.py",
        'return _both(seen, own) if box.kind == "keep" else seen',
        "return own",
        "What a mask hides from a softmax is not hidden before the maps in front of it.",
        ("graph/test_hidden.py::test_what_is_seen", "test_hidden.py::test_every_map_in_every_box"),
    ),
    Mutation(
        "graph/signs.py",
        "found[1] ** 2 < 4 * found[0] * found[2]",
        "found[1] ** 2 > 4 * found[0] * found[2]",
        "A polynomial with roots is taken for one that is never negative, and the warning is lost.",
        ("graph/test_signs.py",),
    ),
    # The reference
    Mutation(
        "reference_boxes.py",
        "return distance.abs() <= numbers[0]",
        "return distance.abs() < numbers[0]",
        "A band is narrower than it says.",
        (f"{PLAIN}[band-False-reference]",),
    ),
    Mutation(
        "reference_boxes.py",
        "(v[place] - dot(S, key))",
        "(v[place])",
        "The delta rule adds and takes nothing away.",
        (f"{PLAIN}[fast_weight2-True-reference]",),
    ),
    Mutation(
        "reference_boxes.py",
        "(a * cos - b * sin, b * cos + a * sin, rest)",
        "(a * cos + b * sin, b * cos - a * sin, rest)",
        "Rotary positions turn the other way, which scores alone do not show.",
        ("test_reference_boxes.py::test_rope_turns_pairs_by_the_position",),
    ),
    # Rewriting
    Mutation(
        "rewrite/simplify.py",
        'scale = times(term.coefficient, box.number("scale"))',
        "scale = term.coefficient",
        "The scale of a softmax is lost where its scores have one of their own.",
        (f"{RULE}[scale of the scores]",),
    ),
    Mutation(
        "rewrite/scores.py",
        "Term(other.coefficient, (b,))",
        "Term(one.coefficient, (b,))",
        "Two products with the same keys are gathered with the coefficient of one of them.",
        (f"{SCORES}[False-gathered with signs]",),
    ),
    Mutation(
        "rewrite/relu.py",
        "negative = Contraction((Term(Negative(ONE), (use,)),))",
        "negative = Contraction((Term(ONE, (use,)),))",
        "relu of a product loses the part where both factors are negative.",
        (f"{RULE}[relu of a weight]",),
    ),
    Mutation(
        "rewrite/products.py",
        "terms[at : at + 1] = found[0]",
        "terms[at : at + 1] = found[0][:1]",
        "A product with a sum keeps the first term of the sum alone.",
        (f"{RULE}[distribution]",),
    ),
    # Costs
    Mutation(
        "cost/work.py",
        "found[_ordered(scene, (*op.scores, *op.value.legs))] += 1",
        "pass",
        "The cost of fused attention leaves out the product with the values.",
        ("cost/test_cost.py::test_work",),
    ),
    Mutation(
        "cost/memory.py",
        "if b.name in scene.learned",
        "if a.name in scene.learned",
        "What the backward keeps is counted for the wrong factor.",
        ("cost/test_cost.py::test_a_frozen_weight_saves_no_input",),
    ),
    Mutation(
        "cost/linear.py",
        "found[(query, *read, *parts.result)] += chunk",
        "pass",
        "The cost of causal linear attention leaves out what scores inside a chunk read.",
        ("cost/test_linear.py::test_formulas[linear-True]",),
    ),
    Mutation(
        "cost/experts.py",
        "k if leg == product.expert else leg",
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
    # Planning
    Mutation(
        "plan/fuse.py",
        "box.masks,",
        "(),",
        "Fused attention forgets the design's own mask.",
        ("plan/test_band.py::test_refused_with_the_reason_and_still_right[too wide]",),
    ),
    Mutation(
        "plan/price.py",
        "KEEPS, AGAIN = (3, 3), (4, 3)",
        "KEEPS, AGAIN = (1, 1), (1, 1)",
        "A training step is priced like a forward.",
        ("plan/test_price.py::test_a_longer_run_takes_longer_and_a_backward_more",),
    ),
    Mutation(
        "plan/aim.py",
        '"decoding": Bucket(1, 4096, backward=False)',
        '"decoding": Bucket(4096, 4096, backward=False)',
        "Decoding is planned for as many queries as keys, and no weights are absorbed.",
        ("plan/test_absorb.py::test_mla_at_decoding_attends_to_its_latent",),
    ),
    Mutation(
        "plan/linear.py",
        "terms.append(Term(term.coefficient, tuple(uses)))",
        "terms.append(Term(ONE, tuple(uses)))",
        "Linear attention loses the coefficients of its scores.",
        (f"{SUMMED}[scaled, with eps-False]",),
    ),
    Mutation(
        "plan/fade.py",
        "term if graph.key not in sides else negated(term)",
        "term",
        "Scores grow by the numbers of keys that they should fade by.",
        (f"{DECAYING}[by numbers of a query and of a key]",),
    ),
    Mutation(
        "plan/normalized.py",
        "() if eps == Number(0) else (Term(eps, ()),)",
        "()",
        "A normalised blend of maps loses its eps.",
        ("plan/test_normalized.py::test_no_map_of_a_normalized_blend_is_made[with eps-False]",),
    ),
    Mutation(
        "plan/tiles/derive.py",
        "self.nodes.add([d, self.nodes.mul(self.minus, rows)])",
        "d",
        "The gradient of a softmax in tiles lacks the sum of A dA.",
        (f"{TILES}[19-mhsa]",),
    ),
    Mutation(
        "plan/tiles/build.py",
        "Number(1 / len(tiles))",
        "Number(1)",
        "A mean over heads in tiles is a sum.",
        ("triton/test_regions.py::test_every_kind_of_call[less the mean of the heads]",),
    ),
    Mutation(
        "plan/tiles/maps.py",
        '"{d} * (1 - {y} * {y})"',
        '"{d} * (1 + {y} * {y})"',
        "The gradient of tanh in tiles has a wrong sign.",
        ("triton/test_hidden.py::test_every_map_in_every_box[softmax over tanh, a map of it, causal]",),
    ),
    # The text of modules
    Mutation(
        "emit/contract.py",
        'f"-{text}" if known == -1',
        "text if known == -1",
        "A coefficient of -1 is written as nothing.",
        (f"{PLAIN}[differential-False-torch]",),
    ),
    Mutation(
        "emit/masks.py",
        'return " & ".join(calls)',
        'return " | ".join(calls)',
        "Of two masks of a design one is enough to look.",
        ("plan/test_rows.py::test_the_result_is_the_same[5-5-the mean and the sum over keys]",),
    ),
    Mutation(
        "emit/attention.py",
        'options += ["causal=True"] if causal else []',
        "options += []",
        "Fused attention of a causal design sees later keys.",
        (f"{PLAIN}[mhsa-True-torch]",),
    ),
    Mutation(
        "emit/rows.py",
        "coefficient = scale if first.coefficient == ONE",
        "coefficient = ONE if first.coefficient == ONE",
        "Attention in blocks of rows loses the scale of its softmax.",
        (f"{PLAIN}[transformer_xl-False-torch]", f"{PLAIN}[talking_heads-False-torch]"),
    ),
    Mutation(
        "emit/triton/forward.py",
        "{name} = {name} * fade_{place}{sides} + ",
        "{name} = {name} + ",
        "A kernel adds blocks of keys whose maps lack different factors.",
        (f"{TILES}[19-mhsa]", "triton/test_regions.py::test_lengths[64]"),
    ),
    Mutation(
        "emit/triton/region.py",
        'sign = "+" if fixed == n else "-"',
        'sign = "-" if fixed == n else "+"',
        "With fewer queries than keys a kernel loops over the wrong blocks.",
        ("triton/test_regions.py::test_two_lengths",),
    ),
    # Functions that modules call
    Mutation(
        "nn/functions/rows.py",
        "seen(total, i, legs, piece, call).add_(one)",
        "seen(total, i, legs, piece, call).copy_(one)",
        "Keys get the gradient of the last block of rows alone.",
        ("nn/test_rows.py::test_values_and_gradients_in_blocks_that_need_not_divide_n[block0-8-8]",),
    ),
    Mutation(
        "nn/functions/linear.py",
        "scores = linear_scores(q, k, core).tril()",
        "scores = linear_scores(q, k, core)",
        "Causal linear attention sees later keys of the same chunk.",
        (f"{PLAIN}[linear-True-torch]",),
    ),
    Mutation(
        "nn/functions/scan.py",
        "- g_system.mT @ (rate * k) + rate * g_key",
        "+ rate * g_key",
        "The gradient of the keys of a delta rule lacks what they erase.",
        (f"{PLAIN}[fast_weight2-True-torch]",),
    ),
    Mutation(
        "nn/functions/band.py",
        "(past >= -left)",
        "(past > -left)",
        "A band is narrower on its left side than it says.",
        ("plan/test_band.py::test_blocks_and_the_result_is_the_same",),
    ),
    Mutation(
        "nn/functions/experts.py",
        "rows = rows * gates",
        "pass",
        "The gradient of the weights of experts forgets the gates.",
        ("nn/test_experts.py::test_values_and_gradients",),
    ),
    Mutation(
        "nn/functions/fading.py",
        "held = held + (start - start[..., :1])",
        "held = held - (start - start[..., :1])",
        "What was held before a stretch of keys is taken away from what fades.",
        ("plan/test_fading.py::test_fading_by_any_numbers",),
    ),
    Mutation(
        "nn/functions/softmax.py",
        "return out if some is None else torch.where(some, out, 0)",
        "return out",
        "A row that sees nothing reads the mean of all values.",
        (f"{KEYS}[mhsa-torch]",),
    ),
    Mutation(
        "nn/functions/positions.py",
        "return torch.arange(m - n, m, device=device)",
        "return torch.arange(n, device=device)",
        "With fewer queries than keys the first query stands at the first key.",
        (CROSS,),
    ),
    Mutation(
        "nn/functions/topk.py",
        "descending=True, stable=True",
        "descending=False, stable=True",
        "The smallest gates are chosen.",
        (f"{PLAIN}[head_gated-False-torch]",),
    ),
    # Kernels
    Mutation(
        "nn/triton/kernels/linear_kernels.py",
        "past <= 0 if LATER else past >= 0",
        "past <= 0 if LATER else past > 0",
        "A kernel of causal linear attention leaves out the key at the query.",
        ("triton/test_linear.py::test_a_key_mask[True]",),
    ),
    Mutation(
        "nn/triton/kernels/scan_kernels.py",
        "own = (-own if LATER else own) - product",
        "own = (-own if LATER else own) + product",
        "A kernel of the delta rule adds what is stored instead of taking it away.",
        ("triton/test_scan.py::test_a_key_mask",),
    ),
    Mutation(
        "nn/triton/kernels/experts_kernels.py",
        "found *= tl.load(gates + choice, there, 0.0).to(DTYPE)[:, None]",
        "found *= 1.0",
        "A kernel of chosen experts forgets the gates.",
        ("triton/test_experts.py::test_values_and_gradients",),
    ),
    Mutation(
        "nn/triton/kernels/region_inside.py",
        "return 0.6931471805599453 * (",
        "return 1.4426950408889634 * (",
        "Kernels keep the sums of rows in the wrong unit, which the backward alone reads.",
        (f"{TILES}[19-mhsa]",),
    ),
    # Search, special cases, conversion, training
    Mutation(
        "search/moves/core.py",
        'parse(f"{rows} ** -0.5")',
        'parse(f"{rows} ** 0.5")',
        "The move that adds a core scales scores up.",
        (f"{MOVES}[thsa-mhsa-core]",),
    ),
    Mutation(
        "search/moves/gates.py",
        '} ** -0.5)"\n    sketch, weight',
        '} ** 0.5)"\n    sketch, weight',
        "The move that adds experts starts its gates far too large.",
        (f"{MOVES}[epa-mhsa-experts]",),
    ),
    Mutation(
        "special/value.py",
        "return left[0] * right[0], left[1] * right[1]",
        "return left[0] * right[1], left[1] * right[0]",
        "The shape of a Kronecker product is that of another one.",
        ("special/test_edges.py::test_a_design_is_its_special_case_at_the_weights_it_names[thsa-mhsa-False]",),
    ),
    Mutation(
        "convert/values.py",
        "return torch.kron(left, right)",
        "return torch.kron(right, left)",
        "A design starts from attention with heads and components exchanged.",
        ("special/test_edges.py::test_a_design_is_its_special_case_at_the_weights_it_names[thsa-mhsa-False]",),
    ),
    Mutation(
        "convert/families/plain.py",
        'biases["bq"] = biases["bq"] * factor',
        "pass",
        "A converted model with an unusual scale keeps the bias of its queries as it was.",
        ("convert/test_read.py::test_other_scales_of_gpt2_go_into_the_queries",),
    ),
    Mutation(
        "convert/masks.py",
        "return visible.tril() if causal else visible",
        "return visible",
        "A converted causal model keeps a mask where a key mask would do, or is refused.",
        ("convert/test_masks.py::test_hidden_keys_become_a_key_mask",),
    ),
    Mutation(
        "train/metrics.py",
        'if line["step"] <= step',
        'if line["step"] < step',
        "A run that goes on from a checkpoint loses the line of its last step.",
        ("train/test_resume.py::test_a_run_that_is_killed_twice", "train/test_metrics.py"),
    ),
    Mutation(
        "train/schedule.py",
        "return run.lr * step / run.warmup",
        "return run.lr",
        "The learning rate does not rise from zero.",
        ("tensornet_attn/train/schedule.py",),
    ),
    Mutation(
        "tasks/score.py",
        "parts = {name: (a[0] + b[0], a[1] + b[1])",
        "parts = {name: (a[0] + b[0], max(a[1], b[1]))",
        "The mean of several batches is their sum.",
        ("tasks/test_score.py::test_perplexity_is_that_of_the_whole_not_the_mean_of_parts",),
    ),
)
