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
        gradients = compute_gradients(g, *ctx.saved_tensors, *ctx.options, *([list(wanted)] if asks else []))
        # others may be unset memory
        gradients = (gradient if is_wanted else None for gradient, is_wanted in zip(gradients, wanted, strict=True))
        return *gradients, *[None] * (operands - trained + len(ctx.options))

    def keep_all(ctx, inputs, output):
        ctx.save_for_backward(*inputs[: operands + 1])
        ctx.options = inputs[saved:]

    def twice(ctx, *seconds):
        tensors, none = [*ctx.saved_tensors], [None] * (saved + len(ctx.options))
        indices = [i for i, x in enumerate(tensors[: trained + 1]) if x is not None]
        with exact_products(seconds[0]):
            pullback = torch.func.vjp(
                lambda *present: plain(*put(tensors, indices, present), *ctx.options), *(tensors[i] for i in indices)
            )[1]
            return tuple(put(none, indices, pullback(seconds)))

    compute_gradients = called(gradients, differentiable(gradients, keep_all, twice, mapped))
    return called(op, differentiable(op, keep, backward, mapped))


def tensors_of(op) -> int:
    """The number of tensors that an operation takes, some of which may be None."""
    return sum(str(argument.type) in ("Tensor", "Optional[Tensor]") for argument in op._opoverload._schema.arguments)


def put(tensors: list, indices: list[int], replacements) -> list:
    """`tensors` with others at these indices."""
    replaced = [*tensors]
    for index, x in zip(indices, replacements, strict=True):
        replaced[index] = x
    return replaced


def called(op, function):
    """The call of an operation: by its Function for eager mode, but where torch traces the operation itself."""
    return lambda *arguments: op(*arguments) if torch.compiler.is_compiling() else applied(function, *arguments)


def derivatives_of(plain, trained: int):
    """The gradients of the first operands of a function, for `recomputed`, by the derivatives of its operations."""

    def gradients(g, *operands):
        return torch.func.vjp(lambda *leaves: plain(*leaves, *operands[trained:]), *operands[:trained])[1](g)

    return gradients
