"""Maps of a tensor: elementwise maps, norms, reductions over visible entries, top-k selection.

A row that sees nothing gives zeros, with zero gradients.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.constants import MAP_PART
from tensornet_attn.runtime.operations import applied, exports_onnx, is_plain, largest_number
from tensornet_attn.runtime.precision import in_range, wide_dtype

LONGEST_BITS = 24  # of lengths in a program for ONNX
FEW_ENTRIES = 15  # up to which torch's norm is slower and its gradient wrong: it rounds mean and deviation to half
SMALL_CALL = 1 << 16  # numbers whose calls take longer than what is computed with them

# In traced code, `elu` and `softplus` are composed of other calls: tracing assumes wrong strides for the gradients of
# torch's own functions if x and its incoming gradient have different layouts, and views of them then fail at run time.
# Additions and divisions are computed in at least float32, as in torch's own functions.


def has_few(x: Tensor) -> bool:
    """Whether fewer calls matter more than what they compute; False in traced code, where it would fix a length."""
    return not torch.compiler.is_compiling() and x.numel() <= SMALL_CALL


def fewer_calls() -> bool:
    """Whether a result may be changed in place: the call is not traced, and records no gradients."""
    return not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def with_padding(x: Tensor, pad: tuple[int, ...], value: float = 0.0) -> Tensor:
    """`F.pad`, without a copy if there is nothing to pad."""
    return F.pad(x, pad, value=value) if torch.compiler.is_compiling() or any(pad) else x


def transformed(x: Tensor) -> bool:
    """Whether a transform of torch.func, or a gradient of many at once, sees x as a batch."""
    return "Batched" in repr(torch._C._dispatch_keys(x)) or torch._C._functorch.is_functorch_wrapped_tensor(x)


def by_parts(*tensors: Tensor) -> bool:
    """Whether to compute part by part: large, contiguous, on a CPU; allocating whole temporaries is as slow as exp."""
    if tensors[0].numel() < 2 * MAP_PART or any(map(transformed, tensors)):
        return False
    return all(x.is_contiguous() and x.device.type == "cpu" for x in tensors)


def flat_parts(*tensors: Tensor):
    """The parts of contiguous tensors, side by side."""
    size = MAP_PART * torch.get_num_threads()
    return zip(*(x.view(-1).split(size) for x in tensors), strict=True)


def elu1(x: Tensor) -> Tensor:
    """elu(x) + 1 without cancellation: exp(x) below zero, x + 1 above."""
    if torch.compiler.is_compiling():
        return x.clamp(max=0).exp() + x.relu()
    return applied(Elu1, x) if torch.is_grad_enabled() else Elu1.forward(x)


class Elu1(torch.autograd.Function):
    """`elu1` in eager mode: saves only its result, because the derivative is min(result, 1)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        """Computes the value."""
        if x.numel() <= SMALL_CALL // 4 or not is_plain((x,)):
            return x.clamp(max=0).exp_().add_(x.relu())
        if not by_parts(x):
            return times_exp(torch.add(x, 1).clamp_(min=1), x)
        out = torch.empty_like(x)
        for x_part, out_part in flat_parts(x, out):
            times_exp(torch.add(x_part, 1, out=out_part).clamp_(min=1), x_part)
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Saves the result."""
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, g):
        """The gradient of x."""
        (y,) = ctx.saved_tensors
        if torch.is_grad_enabled() or not by_parts(y, g):
            return y.clamp(max=1) * g
        g_x = torch.empty_like(y)
        for y_part, g_part, g_x_part in flat_parts(y, g, g_x):
            torch.clamp(y_part, max=1, out=g_x_part).mul_(g_part)
        return g_x

    @staticmethod
    def jvp(ctx, tangent):
        """The tangent of the result."""
        return ctx.saved_tensors[0].clamp(max=1) * tangent


def times_exp(y: Tensor, x: Tensor) -> Tensor:
    """Multiplies y by exp(x) where x is negative, in place and in one pass, as the gradient of elu does."""
    return torch.ops.aten.elu_backward.grad_input(y, 1, 1, 1, False, x, grad_input=y)


def elu1_neg(x: Tensor) -> Tensor:
    """elu(-x) + 1."""
    return elu1(-x)


def elu1_slope(y: Tensor, g: Tensor) -> Tensor:
    """The gradient of x from that of y = elu1(x); overwrites both."""
    return g.mul_(y.clamp_(max=1))


def elu1_neg_slope(y: Tensor, g: Tensor) -> Tensor:
    """The same for y = elu1_neg(x)."""
    return g.mul_(y.clamp_(max=1).neg_())


def tanh_slope(y: Tensor, g: Tensor) -> Tensor:
    """The same for y = tanh(x), which it leaves as it is."""
    return torch.ops.aten.tanh_backward.grad_input(g, y, grad_input=g)


SLOPES = {elu1: elu1_slope, elu1_neg: elu1_neg_slope, torch.tanh: tanh_slope, None: lambda y, g: g}


def reciprocal(x: Tensor) -> Tensor:
    """1 / x, and 0 if x is 0, also in the gradient."""
    if fewer_calls():
        return steep(x).reciprocal().masked_fill_(x == 0, 0).to(x.dtype)
    return torch.where(x == 0, 0, steep(torch.where(x == 0, 1, x)).reciprocal()).to(x.dtype)


def raised_to(x: Tensor, p: float) -> Tensor:
    """x ** p."""
    return (steep(x) ** p).to(x.dtype)


def steep(x: Tensor) -> Tensor:
    """The operand of a map whose slope may exceed float16, though its result does not: 1e-5 ** -0.5, or 1 / 1e-3."""
    return x.float() if x.dtype == torch.float16 else x


def elu(x: Tensor) -> Tensor:
    """x above zero, exp(x) - 1 below."""
    if not torch.compiler.is_compiling():
        return F.elu(x)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide.clamp(max=0).expm1() + wide.relu()).to(x.dtype)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    if not torch.compiler.is_compiling():
        return F.softplus(x)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.logaddexp(wide, torch.zeros_like(wide)).to(x.dtype)


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


def softcap(x: Tensor, cap: float) -> Tensor:
    """cap tanh(x / cap): between -cap and cap."""
    return cap * torch.tanh(x / cap)


def rms_norm(x: Tensor, dim: int, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x ** 2) + eps)."""
    x = x.movedim(dim, -1)
    return F.rms_norm(x, x.shape[-1:], eps=eps).movedim(-1, dim)


def layer_norm(x: Tensor, dim: int, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps)."""
    # tracing assumes wrong strides; see the comment above
    if torch.compiler.is_compiling() or (x.element_size() < 4 and x.shape[dim] <= FEW_ENTRIES):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return rms_norm(wide - wide.mean(dim, keepdim=True), dim, eps).to(x.dtype)
    x = x.movedim(dim, -1)
    return F.layer_norm(x, x.shape[-1:], eps=eps).movedim(-1, dim)


def group_norm(x: Tensor, dim: int, groups: int, eps: float = 1e-5) -> Tensor:
    """`layer_norm` within each of `groups` blocks of adjacent entries."""
    x = x.movedim(dim, -1)
    return layer_norm(x.unflatten(-1, (groups, -1)), -1, eps).flatten(-2).movedim(-1, dim)


def l1_norm(x: Tensor, dim: int, eps: float = 0.0) -> Tensor:
    """x / (sum of absolute values + eps); zeros stay zeros."""
    total = x.abs().sum(dim, keepdim=True)
    return divided(x, total + eps if eps else total)


def l2_norm(x: Tensor, dim: int, eps: float = 0.0) -> Tensor:
    """x / (square root of the sum of squares + eps); zeros stay zeros."""
    return divided(x, torch.linalg.vector_norm(x, dim=dim, keepdim=True) + eps)


def divided(x: Tensor | int, total: Tensor) -> Tensor:
    """x / total; a zero total gives zeros, with zero gradients."""
    zero = total == 0
    if fewer_calls():
        return (x / total).masked_fill_(zero, 0)
    return torch.where(zero, 0, x / torch.where(zero, 1, total))


def kept(x: Tensor, keep: Tensor | None = None) -> Tensor:
    """x where visible, zeros elsewhere."""
    return x if keep is None else torch.where(keep, x, 0)


def normalized(scores: Tensor, keep: Tensor | None = None, eps: float = 0.0) -> Tensor:
    """scores / (row sum + eps) over the visible keys: [..., n, m]. In float32 or wider: gradients round once."""
    dtype, scores = scores.dtype, kept(scores, keep).to(wide_dtype(scores.dtype))
    return divided(scores, scores.sum(-1, keepdim=True) + eps).to(dtype)


def normalized_gradient(
    scores: Tensor, gradient: Tensor, keep: Tensor | None = None, dim: int = -1, eps: float = 0.0
) -> Tensor:
    """The gradient of the scores, from that of `normalized`; hidden entries contribute nothing."""
    scores, gradient = torch.broadcast_tensors(scores, gradient)
    dtype, scores = scores.dtype, kept(scores, keep).to(wide_dtype(scores.dtype))
    share = divided(1, scores.sum(dim, keepdim=True) + eps)
    rows = kept(scores * gradient, keep).sum(dim, keepdim=True) * share
    return kept((gradient - rows) * share, keep).to(dtype)


def masked_sum(x: Tensor, keep: Tensor | None = None) -> Tensor:
    """The sum of the visible entries: [..., m] -> [...]."""
    return kept(x, keep).sum(-1)


def masked_cumsum(x: Tensor, keep: Tensor | None = None) -> Tensor:
    """The cumulative sums of the visible entries: [..., m] -> the same; accumulated in at least float32."""
    return kept(x, keep).cumsum(-1, dtype=torch.promote_types(x.dtype, torch.float32)).to(x.dtype)


def masked_reverse_cumsum(x: Tensor, keep: Tensor | None = None) -> Tensor:
    """The reverse cumulative sums of the visible entries: [..., m] -> the same."""
    return masked_cumsum(kept(x, keep).flip(-1)).flip(-1)


def masked_mean(x: Tensor, keep: Tensor | None = None) -> Tensor:
    """The mean of the visible entries, of none 0: [..., m] -> [...]."""
    if keep is None:
        return x.mean(-1) if x.shape[-1] else x.sum(-1)
    return kept(x, keep).sum(-1) / keep.sum(-1).clamp(min=1)


def masked_max(x: Tensor, keep: Tensor | None = None) -> Tensor:
    """The largest visible entry, of none 0; equal entries share the gradient: [..., m] -> [...]."""
    if keep is None or not x.shape[-1]:
        return x.amax(-1) if x.shape[-1] else x.sum(-1)
    return torch.where(keep.any(-1), torch.where(keep, x, -largest_number(x)).amax(-1), 0)


def max_gradient(x: Tensor, gradient: Tensor, dim: int) -> Tensor:
    """The gradient of x in `x.amax(dim)`; `gradient`: that of the result, of size 1 along `dim`."""
    share = (x == x.amax(dim, keepdim=True)).to(gradient.dtype)
    return share * (gradient / share.sum(dim, keepdim=True))


def masked_logsumexp(x: Tensor, keep: Tensor | None = None) -> Tensor:
    """logsumexp of the visible entries, of none a number for minus infinity: [..., m] -> [...].

    Masked entries are relative to the largest: the backward of `logsumexp` subtracts its result, which at -1e9 has lost
    the logarithm of the number of keys.
    """
    nothing, bound = max(-1e15, torch.finfo(x.dtype).min / 2), largest_number(x)  # differences of `nothing` are finite
    if keep is None or not x.shape[-1]:
        return x.logsumexp(-1) if x.shape[-1] else x.sum(-1) + nothing
    x = torch.where(keep, x, -bound)
    largest = x.detach().amax(-1, keepdim=True).clamp(-bound, bound)
    return torch.where(keep.any(-1), (x - largest).logsumexp(-1) + largest[..., 0], nothing)


def added(x: Tensor, bias: Tensor | None) -> Tensor:
    """x + bias, if there is a bias."""
    return x if bias is None else x + in_range(bias, x.dtype)


def running_least(x: Tensor) -> Tensor:
    """The minimum of each row and those before it: [..., m, d]."""
    if not (torch.compiler.is_compiling() and exports_onnx()):
        return x.cummin(-2).values
    m = x.shape[-2]
    at, powers = torch.arange(m, device=x.device), m.bit_length() if type(m) is int else LONGEST_BITS
    for power in range(powers):  # ONNX has no cummin; each step doubles the number of rows before it that a row knows
        x = torch.minimum(x, x.index_select(-2, (at - 2**power).clamp(min=0)))
    return x


def top_indices(by: Tensor, k: int, dim: int) -> Tensor:
    """The indices of the k largest entries, largest first; of equal ones the first, as ONNX takes them from `topk`."""
    if torch.compiler.is_compiling() and exports_onnx():
        return by.topk(k, dim).indices
    return by.sort(dim=dim, descending=True, stable=True).indices.narrow(dim, 0, k)


def top_entries(
    values: Tensor, by: Tensor, k: int, dim: int, fill: float = 0.0, keep: Tensor | None = None, few: bool = False
) -> Tensor:
    """`values` at the k largest entries of `by` along `dim`, `fill` elsewhere; hidden entries are never chosen.

    `keep`: which entries are visible. `few`: there may be fewer than k entries.
    """
    same = by is values
    if not same:
        values, by = torch.broadcast_tensors(values, by)
    none_chosen = torch.zeros_like(by, dtype=torch.bool)
    ranks = by if keep is None else torch.where(keep, by.clamp(min=torch.finfo(by.dtype).min), float("-inf"))
    if few and torch.compiler.is_compiling() and not exports_onnx():  # the least of k and a length would guard it
        best = torch.arange(by.shape[dim], device=by.device) < k
        best = best.expand(by.movedim(dim, -1).shape).movedim(-1, dim)
        chosen = none_chosen.scatter(dim, ranks.sort(dim=dim, descending=True, stable=True).indices, best)
    else:
        chosen = none_chosen.scatter(dim, top_indices(ranks, min(k, by.shape[dim]) if few else k, dim), True)
    chosen = chosen if keep is None else chosen & keep
    # gives the operands of another `by` zero gradients instead of none
    return torch.where(chosen, values, fill if same else torch.where(none_chosen, by, fill))


def in_best_groups(by: Tensor, groups: int, best: int, dim: int, counted: int = 1) -> Tensor:
    """`by` in the best groups of adjacent entries along `dim`, minus infinity in the others.

    `groups`: number of groups; `best`: number of groups to keep. A group is scored by the sum of its `counted` largest
    entries.
    """
    split = by.movedim(dim, -1).unflatten(-1, (groups, -1))
    scores = split.amax(-1) if counted == 1 else split.topk(counted, -1).values.sum(-1)
    inside = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, top_indices(scores, best, -1), True)
    return torch.where(inside[..., None], split, float("-inf")).flatten(-2).movedim(-1, dim)
