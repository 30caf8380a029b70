"""Sums over chosen experts of which there are few: one product with all experts, gates by Triton kernels.

# y = sum over chosen e of G (x W[e])    ->    P = x W of all experts; y = the chosen rows of P times G, added
# y = sum over h and chosen e of G (x[h] W[h e])    ->    X = x[h] G for chosen e, 0 for others; y = X W

G are the k largest maps of a router's rows. Nothing is sorted, and a product with all experts has larger tiles than one
for each expert.
"""

import functools
import math

import torch
from torch import Tensor

from tensornet_attn.constants import MOST_BITS
from tensornet_attn.runtime.experts import expert_sums, gated_expert_sums, top_chosen
from tensornet_attn.runtime.operations import asks_gradients, is_plain, plain_gradients
from tensornet_attn.runtime.products import exact_products
from tensornet_attn.runtime.triton.configure import padded
from tensornet_attn.runtime.triton.kernels.experts import call_triton_routed, in_product_dtype
from tensornet_attn.runtime.triton.kernels.gated_experts_kernels import gated_rows, gated_sums
from tensornet_attn.runtime.triton.kernels.kept import KeptLaunch, kept_launch
from tensornet_attn.runtime.triton.kernels.tile_maps import TILE_MAPS
from tensornet_attn.runtime.triton.kernels.tiles import sums_of, tile_type

GATED_TILE = 2048  # elements of a tile


def triton_gated_expert_sums(
    x: Tensor, weight: Tensor, of: Tensor, k: int, total: bool = False, gate: str = ""
) -> Tensor:
    """`gated_expert_sums`, with the same arguments; `gate`: the name of a `tile_map`, or empty."""
    if (
        x.shape[: (-2 if total else -1)] != of.shape[: 2 - weight.ndim]
        or not is_plain((x, weight, of))
        or of.shape[-1] > MOST_BITS
    ):
        gates, chosen = top_of_map(of, k, gate)
        return expert_sums(with_slots(x, weight, total), weight, gates, chosen, total, call_triton_routed)
    if x.dtype != weight.dtype or torch._C._is_any_autocast_enabled():
        x, weight, _ = in_product_dtype(x, weight, None)
    if asks_gradients(x, weight, of):
        return GatedSums.apply(x, weight, of, k, total, gate)
    return gated_call(x, weight, of, k, total, gate).result(x, weight, of, False)[0]


def with_slots(x: Tensor, weight: Tensor, total: bool) -> Tensor:
    """x with the dimensions of heads and slots that products with sorted rows have."""
    return x[..., None, None, :] if weight.ndim == 4 and not total else x.unsqueeze(-2)


def top_of_map(of: Tensor, k: int, gate: str) -> tuple[Tensor, Tensor]:
    """The k largest maps of `of`, by operations of torch, and their indices."""
    gate_map = TILE_MAPS[gate][0]
    gates = of if gate_map is None else gate_map(of)
    return top_chosen(gates, gates, k)


def gated_call(x: Tensor, weight: Tensor, of: Tensor, k: int, total: bool, gate: str) -> "GatedCall":
    """The kept call for tensors like these."""
    key = "gated", x.shape, weight.shape, of.shape, k, total, gate, x.dtype, of.dtype, x.device
    return kept_launch(key, lambda: GatedCall(x, weight, of, k, total, gate))


class GatedCall:
    """What calls with tensors of the same shapes and dtypes share: sizes and launches."""

    def __init__(self, x: Tensor, weight: Tensor, of: Tensor, k: int, total: bool, gate: str):
        *heads, e, c, o = weight.shape
        h = math.prod(heads)
        t = math.prod(of.shape[:-1]) // h
        lead = of.shape[: 2 - weight.ndim]
        before = c <= o if h == 1 else total  # gates are multiplied before the product
        self.sizes, self.k, self.total, self.before, self.rows = (h, e, c, o), k, total, before, t * h
        self.inner = (t, h * e * (c if before else o))  # of rows for all experts
        self.outer, self.x_shape = (*lead, *(() if total else heads), o), x.shape
        self.tokens, self.back, self.device = (t, c), (t, o), x.device
        self.types = {"DTYPE": tile_type(sums_of(x)), **dict(zip(("MAP", "SLOPE"), TILE_MAPS[gate][1:], strict=True))}
        self.launches = dict[tuple, KeptLaunch]()

    def result(self, x: Tensor, weight: Tensor, of: Tensor, keep: bool):
        """The result, a bit of each row for each chosen expert, and what the gradients need besides the operands.

        If gates are multiplied before the product: rows times gates. Otherwise: the chosen rows if `keep`.
        """
        h, e, c, o = self.sizes
        chosen, of = torch.empty(self.rows, device=self.device, dtype=torch.int32), of.contiguous()
        if self.before:
            rows = self.rows_of(x.contiguous(), of, chosen, None, None, True)
            return torch.mm(rows, weight.reshape(h * e * c, o)).view(self.outer), chosen, rows
        products = torch.mm(x.reshape(self.tokens), self.matrix(weight))
        out, kept = x.new_empty(self.outer), x.new_empty(self.rows, self.k, o) if keep else None
        tensors = {"given": products, "of": of, "chosen": chosen, "out": out, "kept": kept, "others": None, "dof": None}
        self.launch("sums", tensors, True)
        return out, chosen, kept

    def matrix(self, weight: Tensor) -> Tensor:
        """The weight as [c, h e o]."""
        weight = weight if weight.ndim == 4 else weight[None]
        return weight.permute(2, 0, 1, 3).flatten(1)

    def gradients(self, gradient, x, weight, of, chosen, kept, wanted):
        """The gradients of x, weight and `of` where `wanted`."""
        (h, e, c, o), of = self.sizes, of.contiguous()
        dx, dweight, dof = None, None, torch.empty_like(of) if wanted[2] else None
        if not self.before:
            rows = self.rows_of(gradient.contiguous(), of, chosen, kept, dof, False)
            if wanted[0]:
                dx = torch.mm(rows, self.matrix(weight).t()).view(self.x_shape)
            if wanted[1]:
                dweight = torch.mm(x.reshape(self.tokens).t(), rows).view(c, h, e, o).permute(1, 2, 0, 3)
                dweight = dweight.view(weight.shape) if weight.ndim == 4 else dweight[0]
            return dx, dweight, dof
        gradient, x = gradient.reshape(self.back), x.contiguous()
        if wanted[1]:
            dweight = torch.mm(kept.t(), gradient).view(weight.shape)
        if wanted[0] or wanted[2]:
            products, dx = torch.mm(gradient, weight.reshape(h * e * c, o).t()), x.new_empty(self.x_shape)
            tensors = {
                "given": products,
                "of": of,
                "chosen": chosen,
                "out": dx,
                "kept": None,
                "others": x,
                "dof": dof,
            }
            self.launch("sums", tensors, False)
        return dx, dweight, dof

    def rows_of(self, x, of, chosen, others, dof, choose: bool) -> Tensor:
        """Rows times gates for each chosen expert, 0 for the others; the gradient of `of`."""
        out = x.new_empty(self.inner)
        tensors = {"given": x, "of": of, "chosen": chosen, "out": out, "others": others, "dof": dof}
        self.launch("rows", tensors, choose)
        return out

    def launch(self, name: str, tensors: dict, choose: bool) -> None:
        """Launches a kernel of programs that have some rows each."""
        key = name, choose, tensors.get("kept") is None, tensors["dof"] is None
        launch = self.launches.get(key)
        if launch is None:
            (_, e, c, o), kernel = self.sizes, gated_rows if name == "rows" else gated_sums
            width = c if self.before else o
            wide = min(256, padded(width))
            tile = min(max(1, GATED_TILE // wide), padded(self.rows, 1))
            sizes = {"rows": self.rows, "width": width, "each": e, "k": self.k, "ENTRIES": padded(e, 2)}
            sizes |= {"CHOOSE": choose, "ROWS": tile, "WIDTH": wide, "num_warps": 4} | self.types
            launch = self.launches[key] = KeptLaunch(kernel, (-(-self.rows // tile),), sizes)
        if tensors["out"].numel():
            with torch.cuda.device_of(tensors["out"]):
                launch(tensors)


class GatedSums(torch.autograd.Function):
    """The result of a `GatedCall`, with gradients."""

    @staticmethod
    def forward(ctx, x, weight, of, k, total, gate):
        run = gated_call(x, weight, of, k, total, gate)
        out, *saved = run.result(x, weight, of, ctx.needs_input_grad[2])
        ctx.save_for_backward(x, weight, of, *saved)
        ctx.run, ctx.gate = run, gate
        return out

    @staticmethod
    def backward(ctx, gradient):
        (x, weight, of, *saved), wanted = ctx.saved_tensors, ctx.needs_input_grad[:3]
        if torch.is_grad_enabled() or not is_plain((gradient,)):
            plain = functools.partial(gated_expert_sums, k=ctx.run.k, total=ctx.run.total, gate=TILE_MAPS[ctx.gate][0])
            with exact_products(gradient):  # autocast may differ from that of the forward
                gradients = plain_gradients(plain, (x, weight, of), wanted, gradient)
        else:
            with exact_products(gradient):
                gradients = ctx.run.gradients(gradient, x, weight, of, *saved, wanted)
        return *gradients, None, None, None
