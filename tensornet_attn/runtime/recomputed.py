"""Operations whose backward is an operation, too, and computes what it needs again from the operands."""

import torch

from tensornet_attn.runtime.operations import applied, differentiable
from tensornet_attn.runtime.products import exact_products


def recomputed(op, gradients, plain, mapped):
    """The call of an operation whose backward is the operation `gradients`; registers derivatives and vmap rules.

    `op` takes operands, then options; the first of several results has gradients. `gradients` takes the gradient of the
    result, the operands, the results if they are several, the options, and perhaps `wanted`, which of its results are;
    it returns the gradients of the first operands. `plain`: the same without the results of `op`, as code with
    derivatives. Operands may be None.
    """
    operands, saved, schema = tensors_of(op), tensors_of(gradients), gradients._opoverload._schema
    trained, asks = len(schema.returns), schema.arguments[-1].name == "wanted"

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:operands], *(output if isinstance(output, tuple) else ()))
        ctx.options = inputs[operands:]

    def backward(ctx, g, *_):
        wanted = ctx.needs_input_grad[:trained]  # false for None
        found = compute_gradients(g, *ctx.saved_tensors, *ctx.options, *([list(wanted)] if asks else []))
        found = (own if want else None for own, want in zip(found, wanted, strict=True))  # others may be unset memory
        return *found, *[None] * (operands - trained + len(ctx.options))

    def keep_all(ctx, inputs, output):
        ctx.save_for_backward(*inputs[: operands + 1])
        ctx.options = inputs[saved:]

    def twice(ctx, *seconds):
        given, none = [*ctx.saved_tensors], [None] * (saved + len(ctx.options))
        places = [i for i, x in enumerate(given[: trained + 1]) if x is not None]
        with exact_products(seconds[0]):
            pull = torch.func.vjp(
                lambda *some: plain(*put(given, places, some), *ctx.options), *(given[i] for i in places)
            )[1]
            return tuple(put(none, places, pull(seconds)))

    compute_gradients = called(gradients, differentiable(gradients, keep_all, twice, mapped))
    return called(op, differentiable(op, keep, backward, mapped))


def tensors_of(op) -> int:
    """The number of tensors that an operation takes, some of which may be None."""
    return sum(str(argument.type) in ("Tensor", "Optional[Tensor]") for argument in op._opoverload._schema.arguments)


def put(given: list, places: list[int], some) -> list:
    """`given` with others at these places."""
    found = [*given]
    for place, x in zip(places, some, strict=True):
        found[place] = x
    return found


def called(op, function):
    """The call of an operation: by its Function for eager mode, but where torch traces the operation itself."""
    return lambda *given: op(*given) if torch.compiler.is_compiling() else applied(function, *given)


def derivatives_of(plain, trained: int):
    """The gradients of the first operands of a function, for `recomputed`, by the derivatives of its operations."""

    def gradients(g, *given):
        return torch.func.vjp(lambda *own: plain(*own, *given[trained:]), *given[:trained])[1](g)

    return gradients
