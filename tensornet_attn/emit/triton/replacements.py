"""Functions that a backend replaces by Triton kernels with the same arguments."""

BESIDE = {
    "triton": {
        "decay_attention": "triton_decay_attention",
        "delta_rule": "triton_delta_rule",
        "expert_rows": "triton_expert_rows",
        "expert_sums": "triton_expert_sums",
        "gated_delta_rule": "triton_gated_delta_rule",
        "gated_expert_sums": "triton_gated_expert_sums",
        "linear_attention": "triton_linear_attention",
        "top_chosen": "triton_top_chosen",
        "top_entries": "triton_top_entries",
        "weighted_total": "triton_weighted_total",
    }
}
