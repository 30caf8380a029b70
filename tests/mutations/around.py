"""Mutations of what modules call, of kernels, of the search, of special cases, conversion, models and training."""

from __future__ import annotations

from tests.mutations.model import Mutation

PLAIN = "designs/test_designs.py::test_a_design_equals_its_plain_loops"
KEYS = "designs/test_designs.py::test_keys_may_be_masked_even_all_of_a_row"
CROSS = "designs/test_designs.py::test_cross_attention_puts_the_last_query_at_the_last_key"
TILES = "triton/test_region_designs.py::test_values_and_gradients"
MOVES = "search/test_moves.py::test_moves_make_shipped_designs"

AROUND = (
    # Functions that modules call
    Mutation(
        "runtime/blockwise.py",
        "part.add_(share)",
        "part.copy_(share)",
        "Keys get the gradient of the last block of rows alone.",
        ("runtime/test_blockwise.py::test_values_and_gradients_in_blocks_that_need_not_divide_n[block0-8-8]",),
    ),
    Mutation(
        "runtime/linear.py",
        "scores = linear_scores(q, k, core).tril()",
        "scores = linear_scores(q, k, core)",
        "Causal linear attention sees later keys of the same chunk.",
        (f"{PLAIN}[linear-True-torch]",),
    ),
    Mutation(
        "runtime/scan.py",
        "- g_system.mT @ (rate * k) + rate * g_key",
        "+ rate * g_key",
        "The gradient of the keys of a delta rule lacks what they erase.",
        (f"{PLAIN}[fast_weight2-True-torch]",),
    ),
    Mutation(
        "runtime/band.py",
        "(key < near) | (key > far)",
        "(key <= near) | (key > far)",
        "A first key that is also near counts twice.",
        ("plan/test_masks.py::test_blocks_of_what_is_near_and_of_the_first_keys",),
    ),
    Mutation(
        "runtime/blockwise.py",
        "first + m - n - left, end - 1",
        "first + m - n - left + 1, end - 1",
        "A block of queries lacks the farthest key that its first one sees.",
        ("plan/test_masks.py::test_blocks_of_queries_are_the_reference",),
    ),
    Mutation(
        "runtime/band.py",
        "(past >= -left)",
        "(past > -left)",
        "A band is narrower on its left side than it says.",
        ("plan/test_band.py::test_blocks_and_the_result_is_the_same",),
    ),
    Mutation(
        "runtime/experts.py",
        "rows = rows * gates",
        "pass",
        "The gradient of the weights of experts forgets the gates.",
        ("plan/test_experts.py::test_values_and_gradients[batch1-sigma_moe]",),
    ),
    Mutation(
        "runtime/decay.py",
        "held = held + exp((start - start[..., :1])",
        "held = held - exp((start - start[..., :1])",
        "What was held before a stretch of keys is taken away from what decays.",
        ("plan/test_decay.py::test_fading_by_any_numbers",),
    ),
    Mutation(
        "runtime/softmax.py",
        "return out if some is None else torch.where(some, out, 0)",
        "return out",
        "A row that sees nothing reads the mean of all values.",
        (f"{KEYS}[mhsa-torch]",),
    ),
    Mutation(
        "runtime/positions.py",
        "return torch.arange(m - n, m, device=device)",
        "return torch.arange(n, device=device)",
        "With fewer queries than keys the first query stands at the first key.",
        (CROSS,),
    ),
    Mutation(
        "runtime/maps.py",
        "descending=True, stable=True).indices.narrow",
        "descending=False, stable=True).indices.narrow",
        "The smallest gates are chosen.",
        (f"{PLAIN}[head_gated-False-torch]",),
    ),
    # Kernels
    Mutation(
        "runtime/triton/kernels/linear_kernels.py",
        "past <= 0 if LATER else past >= 0",
        "past <= 0 if LATER else past > 0",
        "A kernel of causal linear attention leaves out the key at the query.",
        ("triton/test_linear.py::test_a_key_mask[True]",),
    ),
    Mutation(
        "runtime/triton/kernels/scan_kernels.py",
        "own = (-own if LATER else own) - product",
        "own = (-own if LATER else own) + product",
        "A kernel of the delta rule adds what is stored instead of taking it away.",
        ("triton/test_scan.py::test_values_and_gradients[130-130-16-3-none]",),
    ),
    Mutation(
        "runtime/triton/kernels/experts_kernels.py",
        "found *= tl.load(gates + choice, in_bounds, 0.0).to(DTYPE)[:, None]",
        "found *= 1.0",
        "A kernel of chosen experts forgets the gates.",
        ("triton/test_experts.py::test_values_and_gradients",),
    ),
    Mutation(
        "runtime/triton/kernels/region_inside.py",
        "power = unit_of(1.0 if MASK == 2 else SCALE, MASK) * scores - largest",
        "power = (1.0 if MASK == 2 else SCALE) * scores - largest",
        "Kernels read the scores of the backward in the wrong unit.",
        (f"{TILES}[19-mhsa]",),
    ),
    # Search, special cases, conversion, training
    Mutation(
        "search/moves/scores.py",
        'parse(f"{rows} ** -0.5")',
        'parse(f"{rows} ** 0.5")',
        "The move that adds a core scales scores up.",
        (f"{MOVES}[thsa-mhsa-core]",),
    ),
    Mutation(
        "search/moves/projections.py",
        "} ** -0.5)",
        "} ** 0.5)",
        "The move that adds experts starts its gates far too large.",
        (f"{MOVES}[epa-mhsa-experts]",),
    ),
    Mutation(
        "special/value.py",
        'return (1, len(arguments)) if function.name == "row"',
        'return (len(arguments), 1) if function.name == "row"',
        "A row of numbers in a Kronecker product is a column.",
        ("special/test_edges.py::test_a_design_is_its_special_case_at_the_weights_it_names[hard_gfish-mhsa-False]",),
    ),
    Mutation(
        "convert/values.py",
        "return torch.kron(left, right)",
        "return torch.kron(right, left)",
        "A design starts from attention with heads and components exchanged.",
        ("special/test_edges.py::test_a_design_is_its_special_case_at_the_weights_it_names[thsa-mhsa-False]",),
    ),
    Mutation(
        "convert/read.py",
        'for held in (trained.weights["Wq"], trained.biases.get("bq"))',
        'for held in (trained.weights["Wq"],)',
        "A converted model with an unusual scale keeps the bias of its queries as it was.",
        ("convert/test_read.py::test_other_scales_of_gpt2_go_into_the_queries",),
    ),
    Mutation(
        "convert/masks.py",
        "visible = visible.tril(seen)",
        "pass",
        "A converted causal model keeps a mask where a key mask would do, or is refused.",
        ("convert/test_masks.py::test_hidden_keys_become_a_key_mask",),
    ),
    # Packed sequences
    Mutation(
        "graph/padding.py",
        'return op.recurrent or op.ignores_zeros == "always"',
        "return False",
        "Padding of a packed document is added to sums, which may then be infinite.",
        ("nn/test_packed.py::test_padding_does_not_grow_without_bound",),
    ),
    Mutation(
        "nn/packed.py",
        "share = len(group.documents) / sum(len(group.documents) for group in groups)",
        "share = 1 / len(groups)",
        "Losses of packed documents are averaged over calls, not over documents.",
        ("nn/test_packed.py::test_losses_are_means_over_documents[True]",),
    ),
    # Models that decode, and Hugging Face's
    Mutation(
        "models/model.py",
        "self.table[seen:n] if",
        "self.table[: n - seen] if",
        "Learned positions of a chunk behind a cache start anew.",
        ("models/test_cache.py::test_what_a_model_is_made_of[post_norm-learned]",),
    ),
    Mutation(
        "models/model.py",
        "if source is None or (cache is not None and cache.length) else",
        "if source is None or cache is not None else",
        "A decoder with a cache is never shown its source.",
        ("models/test_cache.py::test_a_decoder_reads_its_source_once",),
    ),
    Mutation(
        "models/model.py",
        "(key_mask.cumsum(1) - 1)",
        "key_mask.cumsum(1)",
        "A token behind padding stands one place too late.",
        ("hf/test_generate.py::test_a_sequence_behind_padding_is_the_sequence_alone[learned]",),
    ),
    Mutation(
        "hf/model.py",
        "logits[:, :-1], labels[:, 1:], losses",
        "logits[:, 1:], labels[:, 1:], losses",
        "A language model is trained to repeat its token.",
        ("hf/test_train.py::test_the_loss_is_the_mean_over_labels[language_model]",),
    ),
    Mutation(
        "hf/cache.py",
        "self.cache.crop(max(0, self.cache.length + tokens_to_remove))",
        "self.cache.crop(-tokens_to_remove)",
        "A cache keeps as many positions as it should forget.",
        ("hf/test_cache.py::test_it_goes_back_where_the_design_can",),
    ),
    Mutation(
        "convert/wrap.py",
        "held[0]() is given and bool(held[1] == given._version)",
        "held[0]() is given",
        "Layers of a converted model go on with a mask that was changed in place.",
        ("convert/test_cache.py::test_a_mask_that_changed_in_place_is_read_again",),
    ),
    Mutation(
        "convert/cache.py",
        "self._change(lambda shifts: shifts.index_select(0, beam_idx.to(shifts.device)))",
        "pass",
        "Sequences of a cache change places, and the shifts of their positions do not.",
        ("convert/test_cache.py::test_sequences_with_padding_change_places_in_the_cache",),
    ),
    Mutation(
        "convert/read.py",
        "(window - 1, 0 if causal else window - 1)",
        "(window, 0 if causal else window)",
        "A converted window is a key too wide.",
        ("convert/test_families.py::test_a_window_is_the_design_s",),
    ),
    Mutation(
        "train/metrics.py",
        'if line["step"] <= step',
        'if line["step"] < step',
        "A run that goes on from a checkpoint loses the line of its last step.",
        ("train/test_resume.py::test_a_run_that_is_killed_twice", "train/test_metrics.py"),
    ),
    Mutation(
        "train/step.py",
        "return run.lr * step / run.warmup",
        "return run.lr",
        "The learning rate does not rise from zero.",
        ("tensornet_attn/train/step.py",),
    ),
    Mutation(
        "tasks/batch.py",
        "parts = {name: (a[0] + b[0], a[1] + b[1])",
        "parts = {name: (a[0] + b[0], max(a[1], b[1]))",
        "The mean of several batches is their sum.",
        ("tasks/test_score.py::test_perplexity_is_that_of_the_whole_not_the_mean_of_parts",),
    ),
    # Designs called as other libraries call attention
    Mutation(
        "convert/multihead.py",
        "return mask != 0, None",
        "return mask == 0, None",
        "An attention_mask of Hugging Face hides the tokens.",
        ("convert/test_multihead.py::test_masks_of_hugging_face_are_integers",),
    ),
    Mutation(
        "convert/multihead.py",
        "in_proj_bias, in_proj_weight, out_proj = None, NotPacked(), NotPacked()",
        "in_proj_bias = None",
        "An encoder looks for packed weights in a design.",
        ("convert/test_multihead.py::test_no_fast_path_of_an_encoder_goes_around_it[mhsa]",),
    ),
    Mutation(
        "convert/interface.py",
        "causal = n > 1 and (own if attention_mask is None else attention_mask.dim() == 2)",
        "causal = n > 1 and own",
        "A causal plan is called with masks of pairs that a model made for itself.",
        ("convert/test_interface.py::test_masks_of_ones_own[llama]",),
    ),
    Mutation(
        "special/between.py",
        '"key" if step.name in scores else "value"',
        '"value" if step.name in scores else "key"',
        "Keys and values are exchanged where a design is taken without its projections.",
        ("special/test_between.py::test_with_projections_it_is_the_whole_design[mhsa]",),
    ),
    Mutation(
        "nn/forward.py",
        "shared.__code__.replace()",
        "shared.__code__",
        "Designs run into torch's limit of graphs together.",
        ("nn/test_manners.py::test_torch_compile_counts_the_graphs_of_designs_apart",),
    ),
    Mutation(
        "cli/modes.py",
        "        if len(chosen) > 1:",
        "        if len(chosen) > 2:",
        "Options that exclude each other are taken together.",
        ("cli/test_modes.py::test_modes_exclude_each_other",),
    ),
    Mutation(
        "convert/loading.py",
        'sorted(loaded[1]["unexpected_keys"])',
        "sorted([])",
        "Weights that config.json does not describe are left out in silence.",
        ("convert/test_saving.py::test_what_is_refused",),
    ),
)
