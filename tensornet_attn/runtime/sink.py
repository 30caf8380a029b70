"""Fused attention with sinks: one more score per row without a value, for PyTorch kernels that lack sinks.

    softmax([s, b]) v without b     =     exp(l - l') softmax(s) v,     l = logsumexp(s), l' = log(exp(l) + exp(b))

The backward of the kernel takes the result and the logsumexp of the rows. Given those with the sink, it returns the
gradients of q, k and v with the sink. The gradient of b is -exp(b - l') <result, gradient of the result> per row.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.operations import applied, exports_onnx
from tensornet_attn.runtime.precision import is_wider
from tensornet_attn.runtime.softmax import sink_softmax


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
    """scaled_dot_product_attention with a sink [batch, h or 1, n or 1, 1].

    Beside a mask of a wider dtype it computes in that: the sink may be as large, and then scores decide between both.
    """
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    if mask is not None and mask.is_floating_point() and is_wider(mask, narrow := q.dtype):
        dtype = torch.promote_types(mask.dtype, q.dtype)
        q, k, v, mask = (t.to(dtype) for t in (q, k, v, mask))
        with torch.autocast(q.device.type, enabled=False):
            return attention_beside_sink(q, k, v, mask, dropout, causal, scale, sink).to(narrow)
    if not sink_takes_kernel(q, k, mask, dropout):
        return sink_as_key(q, k, v, mask, dropout, causal, scale, sink)
    if kernel_lacks():
        return sink_plainly(q, k, v, sink, mask, causal, scale)
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (t.to(torch.get_autocast_dtype("cpu")) for t in (q, k, v))
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, float("-inf"))
    return applied(SinkAttention, q, k, v, sink, mask, causal, scale)[0]


def sink_takes_kernel(q: Tensor, k: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """Whether the kernel of a CPU computes it, unless `sdpa_kernel` says otherwise."""
    trained = mask is not None and mask.requires_grad
    allowed = q.device.type == "cpu" and (torch.compiler.is_compiling() or torch.backends.cuda.flash_sdp_enabled())
    return allowed and not dropout and not trained and 0 not in (*q.shape, *k.shape)


def kernel_lacks() -> bool:
    """Whether derivatives are taken with the call, as `torch.func.jvp` does, or ONNX, which has no logsumexp of it."""
    if torch.compiler.is_compiling():
        return exports_onnx()
    return torch.autograd.forward_ad._current_level >= 0


def sink_plainly(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """The same by operations that have all derivatives."""
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril() if causal else None
    if mask is not None and mask.dtype == torch.bool:
        keep, mask = mask if keep is None else mask & keep, None
    elif mask is not None:
        seen = mask != -torch.inf
        mask, keep = mask.where(seen, 0), seen if keep is None else seen & keep
    return sink_softmax(scale * (q @ k.mT), sink, keep, mask) @ v


class SinkAttention(torch.autograd.Function):
    """The CPU kernel: its result, and the logsumexp of each row including the sink."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, sink, mask, causal, scale):
        """Calls the kernel and rescales its rows by the sink."""
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        out, lse = kernel(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        rows = torch.logaddexp(lse, sink[..., 0].to(lse.dtype))  # h n
        return out * (lse - rows).exp()[..., None].to(out.dtype), rows

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Saves operands, result and row logsumexp."""
        *operands, ctx.causal, ctx.scale = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*operands, *output)

    @staticmethod
    def backward(ctx, g, _):
        """The gradients of the operands."""
        arguments = (g, *ctx.saved_tensors, ctx.causal, ctx.scale)
        gradients = (
            kernel_gradients(*arguments) if torch.compiler.is_compiling() else applied(SinkGradients, *arguments)
        )
        return *gradients, None, None, None


def kernel_gradients(g, q, k, v, sink, mask, out, rows, causal, scale):
    """Those of q, k, v and the sink."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    gradients = kernel(g, q, k, v, out, rows, 0.0, causal, attn_mask=mask, scale=scale)
    share = (sink[..., 0].to(rows.dtype) - rows).exp()
    d_sink = -(share * (g * out).sum(-1, dtype=rows.dtype))[..., None].sum_to_size(sink.shape)
    return *gradients, d_sink.to(sink.dtype)


class SinkGradients(torch.autograd.Function):
    """The backward of the kernel, whose own is that of plain operations."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g, q, k, v, sink, mask, out, rows, causal, scale):
        """The gradients of the operands."""
        return kernel_gradients(g, q, k, v, sink, mask, out, rows, causal, scale)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keeps what the result was made of."""
        *operands, _, _, ctx.causal, ctx.scale = inputs
        ctx.save_for_backward(*operands)

    @staticmethod
    def backward(ctx, *seconds):
        """The result depends on the operands alone: `out` and `rows` are made of them."""
        *operands, mask = ctx.saved_tensors

        def plain(q, k, v, sink):
            return sink_plainly(q, k, v, sink, mask, ctx.causal, ctx.scale)

        def once(g, *leaves):
            return torch.func.vjp(plain, *leaves)[1](g)

        return *torch.func.vjp(once, *operands)[1](seconds), *[None] * 5


def sink_as_key(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float, sink: Tensor
) -> Tensor:
    """Implements the sink as one more feature, and as a first key that is zero except in this feature."""
    bound = torch.finfo(q.dtype).max  # minus infinity times zero would be NaN
    sink = sink.to(torch.promote_types(sink.dtype, q.dtype)) / scale
    sink = sink.clamp(-bound, bound).to(q.dtype).expand(*q.shape[:-1], 1)
    q, k = torch.cat((q, sink), -1), F.pad(k, (0, 1, 1, 0))
    k = k + F.pad(k.new_ones(1, 1), (k.shape[-1] - 1, 0, 0, k.shape[-2] - 1))
    v = F.pad(v, (0, 1, 1, 0))  # same width as the other operands
    if mask is not None:
        mask = F.pad(mask, (1, 0), value=1.0 if mask.dtype == torch.bool else 0.0)
    q = F.pad(q, (0, 0, 1, 0)) if causal else q  # an extra query that sees only the sink, so that the others see it too
    out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale)[..., :-1]
    return out[..., 1:, :] if causal else out
