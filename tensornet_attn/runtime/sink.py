"""Fused attention with sinks: one more score per row without a value, for PyTorch kernels that lack sinks.

    softmax([s, b]) v without b     =     exp(l - l') softmax(s) v,     l = logsumexp(s), l' = log(exp(l) + exp(b))

The backward of the kernel takes the result and the logsumexp of the rows. Given those with the sink, it returns the
gradients of q, k and v with the sink. The gradient of b is -exp(b - l') <result, gradient of the result> per row.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def attention_beside_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float,
    sink: Tensor,
    enable_gqa: bool = False,
) -> Tensor:
    """scaled_dot_product_attention with a sink [batch, h or 1, n or 1, 1]."""
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    if q.device.type != "cpu" or dropout or (mask is not None and mask.requires_grad) or 0 in (*q.shape, *k.shape):
        return sink_as_key(q, k, v, mask, dropout, causal, scale, sink)
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (t.to(torch.get_autocast_dtype("cpu")) for t in (q, k, v))
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, float("-inf"))
    return SinkAttention.apply(q, k, v, sink, mask, causal, scale)[0]


class SinkAttention(torch.autograd.Function):
    """The CPU kernel: its result, and the logsumexp of each row including the sink."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, sink, mask, causal, scale):
        """Calls the kernel and rescales its rows by the sink."""
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        out, own = kernel(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        rows = torch.logaddexp(own, sink[..., 0].to(own.dtype))  # h n
        return out * (own - rows).exp()[..., None].to(out.dtype), rows

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Saves operands, result and row logsumexp."""
        *given, ctx.causal, ctx.scale = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*given, *output)

    @staticmethod
    def backward(ctx, g, _):
        """The gradients of the operands."""
        q, k, v, sink, mask, out, rows = ctx.saved_tensors
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        found = kernel(g, q, k, v, out, rows, 0.0, ctx.causal, attn_mask=mask, scale=ctx.scale)
        share = (sink[..., 0].to(rows.dtype) - rows).exp()
        d_sink = -(share * (g * out).sum(-1, dtype=rows.dtype))[..., None].sum_to_size(sink.shape)
        return *found, d_sink.to(sink.dtype), None, None, None


def sink_as_key(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float, sink: Tensor
) -> Tensor:
    """Implements the sink as one more feature, and as a first key that is zero except in this feature."""
    most = torch.finfo(q.dtype).max  # minus infinity times zero would be NaN
    sink = (sink / scale).clamp(-most, most).to(q.dtype).expand(*q.shape[:-1], 1)
    q, k = torch.cat((q, sink), -1), F.pad(k, (0, 1, 1, 0))
    k = k + F.pad(k.new_ones(1, 1), (k.shape[-1] - 1, 0, 0, k.shape[-2] - 1))
    v = F.pad(v, (0, 1, 1, 0))  # same width as the other operands
    if mask is not None:
        mask = F.pad(mask, (1, 0), value=1.0 if mask.dtype == torch.bool else 0.0)
    q = F.pad(q, (0, 0, 1, 0)) if causal else q  # an extra query that sees only the sink, so that the others see it too
    out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale)[..., :-1]
    return out[..., 1:, :] if causal else out
