"""One optimiser step, on the mean loss of the whole batch over all processes and accumulated parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.batch import UNSCORED, Batch
from tensornet_attn.train.config import Run
from tensornet_attn.train.folder import gathered
from tensornet_attn.train.session import Session, answer, check_tokens, scored_places, seed_part

Tensor = torch.Tensor


def rate(run: Run, step: int) -> float:
    """The learning rate of a step, counted from 1: linear warm-up, then the schedule.

    >>> run = Run(task="copy", design="mhsa", steps=300, warmup=100, lr=1.0)
    >>> [round(rate(run, step), 3) for step in (1, 100, 200, 300)]
    [0.01, 1.0, 0.5, 0.0]
    """
    if step <= run.warmup:
        return run.lr * step / run.warmup
    if run.schedule == "constant":
        return run.lr
    done = (step - run.warmup) / max(1, run.steps - run.warmup)
    decay = (1 + math.cos(math.pi * done)) / 2 if run.schedule == "cosine" else 1 - done
    return run.min_lr + (run.lr - run.min_lr) * decay


class Diverged(InputError):
    """Loss or gradient are not finite; the message names the step and the first layer with such an output."""


@dataclass(frozen=True)
class StepMetrics:
    """The metrics of a step: mean loss in nats, norm of the gradient before clipping, learning rate.

    `losses`: unweighted means of the auxiliary losses by name; `loss` does not include them. `wishes`: for each
    request, the number of processes that made it at this step; the same on all processes.
    """

    loss: float
    losses: dict[str, float]
    grad_norm: float
    lr: float
    wishes: tuple[int, ...]


def optimise(session: Session, wishes: tuple[bool, ...]) -> StepMetrics:
    """Takes one step. Raises Diverged, with unchanged weights, if loss or gradient are not finite.

    The step synchronises with the device once: it reads loss, norm and wishes together, before the update.
    """
    run, number = session.run, session.step + 1
    batches, places = _batches(session)
    scored = session.sum(reduce(torch.add, ((batch.targets != UNSCORED).sum() for batch in batches)))
    weight = session.share.world / scored.clamp(min=1).double()  # processes average gradients, and sum losses
    lr = rate(run, number)
    for group in session.optimizer.param_groups:
        group["lr"] = lr
    session.optimizer.zero_grad()
    part_losses = [
        _run_part(session, part, *of_part, weight) for part, of_part in enumerate(zip(batches, places, strict=True))
    ]
    norm = gathered(torch.nn.utils.clip_grad_norm_(session.model.parameters(), run.clip or math.inf))
    sums = torch.tensor([0.0, *wishes], dtype=torch.float64, device=norm.device)
    sums[0] = sum(loss for loss, _ in part_losses) / scored.clamp(min=1)
    sums = session.sum(torch.cat([sums, reduce(torch.add, (auxiliary for _, auxiliary in part_losses))]))
    loss, *counts, grad_norm = torch.cat([sums, norm.double()[None]]).tolist()
    losses = dict(zip(session.spec.loss_weights, counts[len(wishes) :], strict=True))
    if not all(map(math.isfinite, (loss, *losses.values(), grad_norm))):
        raise Diverged(_divergence(session, batches, {"": loss, **losses}, grad_norm))
    session.optimizer.step()
    session.step = number
    return StepMetrics(loss, losses, grad_norm, lr, tuple(map(round, counts[: len(wishes)])))


def _batches(session: Session) -> tuple[list[Batch], list[Tensor | None]]:
    """The batch of each part and its scored positions, on the device."""
    batches = session.share.batches(session.task, session.step, session.run.batch)
    if session.step == 0:
        for batch in batches:
            check_tokens(batch, session.task)
    device, places = session.fabric.device, [scored_places(batch) for batch in batches]
    return [batch.to(device) for batch in batches], [None if at is None else at.to(device) for at in places]


def _run_part(session: Session, part: int, batch: Batch, at: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the summed loss of one part and its share of each auxiliary loss, and accumulates the gradient.

    Processes synchronise at the last part. An auxiliary loss is a mean over rows, so parts are weighted by rows.
    """
    share, last = session.share, part == session.share.accumulations - 1
    weights, rows = session.spec.loss_weights, len(batch) / session.run.batch
    auxiliary: dict[str, Tensor] = {}
    seed_part(session.run.seed, session.step + 1, part * share.world + share.rank)
    with session.fabric.no_backward_sync(session.module, enabled=not last):
        logits, session.memories[part] = answer(
            session.module, batch, session.memories[part], at, auxiliary if weights else None
        )
        loss, _ = session.task.loss(logits, batch, at, session.run.label_smoothing)
        objective = loss * weight.to(loss.dtype)
        for name in weights:
            objective = objective + share.world * rows * weights[name] * auxiliary[name].to(loss.dtype)
        session.fabric.backward(objective)
    _average_states(session, len(batch))
    means = torch.zeros(len(weights), dtype=torch.float64, device=loss.device)
    for index, name in enumerate(weights):
        means[index] = rows * auxiliary[name].detach()
    return loss.detach(), means


@torch.no_grad()
def _average_states(session: Session, rows: int) -> None:
    """Averages the states of designs over processes: a state is a mean over the rows of the whole batch."""
    if session.share.world == 1:
        return
    states = list(session.model.buffers())
    if states:
        everyone = session.sum(torch.tensor(float(rows), device=states[0].device))
        for state in states:
            state.copy_(session.sum(state * (rows / everyone).to(state.dtype)))


def _divergence(session: Session, batches: list[Batch], losses: dict[str, float], grad_norm: float) -> str:
    """The message of `Diverged`: the value that is not finite, and the layer found by repeating the forward passes."""
    named = {f"the loss '{name}'" if name else "the loss": loss for name, loss in losses.items()}
    numbers = named | {"the norm of the gradient": grad_norm}
    what = next(f"{name} is {number}" for name, number in numbers.items() if not math.isfinite(number))
    share, culprits = session.share, []
    for part, batch in enumerate(batches):

        def repeat_forward(part: int = part, batch: Batch = batch) -> None:
            seed_part(session.run.seed, session.step + 1, part * share.world + share.rank)
            with session.fabric.autocast():
                answer(session.model, batch, session.memories[part], losses={} if session.spec.loss_weights else None)

        culprits.append(culprit(session.model, repeat_forward))
    if share.world > 1:
        everyone: list[list[str]] = [[] for _ in range(share.world)]
        torch.distributed.all_gather_object(everyone, culprits)
        culprits = [line for lines in everyone for line in lines]
    return f"step {session.step + 1}: {what}; {min(culprits, key=lambda line: not line.startswith('the first'))}"


def culprit(model: nn.Module, call: Callable[[], Any]) -> str:
    """Repeats a call and describes the first layer with an output that is not finite.

    If all outputs are finite, describes the first parameter whose gradient is not.
    """
    non_finite: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not non_finite and not all(torch.isfinite(tensor).all() for tensor in _float_tensors(output)):
                non_finite.append(name)

        return hook

    handles = [module.register_forward_hook(look(name)) for name, module in model.named_modules() if name]
    try:
        with torch.no_grad():
            call()
    finally:
        for handle in handles:
            handle.remove()
    if non_finite:
        return f"the first output that is not finite is in '{non_finite[0]}'"
    for name, parameter in model.named_parameters():
        gradient = getattr(parameter.grad, "_local_tensor", parameter.grad)
        if gradient is not None and not torch.isfinite(gradient).all():
            return f"all outputs are finite, but the gradient of '{name}' is not"
    return "the outputs of all layers are finite, but the loss or the norm of the gradient is not"


def _float_tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    children = output.values() if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else ()
    return [tensor for child in children for tensor in _float_tensors(child)]
