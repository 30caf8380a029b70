"""Text from a language model, token after token."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.train.trained import Trained

Tensor = torch.Tensor


def sample(
    trained: Trained, prompt: str, tokens: int, temperature: float = 1.0, top_k: int | None = None, seed: int = 0
) -> str:
    """The prompt and what a language model goes on with. `temperature` 0 takes the most probable token each time.

    Raises InputError for a model of another kind, and for a prompt that is empty or not in the vocabulary.
    """
    if trained.task.kind != "language_model":
        raise InputError(f"'{trained.spec.name}' is a {trained.spec.kind}; sample takes a language model.")
    alphabet = trained.task.alphabet
    given = alphabet.encode(prompt)
    if not given:
        raise InputError("the prompt is empty; give a character or word to begin with.")
    generator = torch.Generator().manual_seed(seed)
    found = [*given, *written(trained.model, given, trained.task.length, tokens, temperature, top_k, generator)]
    return alphabet.decode(found)


@torch.no_grad()
def written(
    model: nn.Module,
    given: list[int],
    length: int,
    tokens: int,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator,
) -> Iterator[int]:
    """Tokens one by one, each drawn given the last `length` before it."""
    seen = list(given)
    for _ in range(tokens):
        logits = model(torch.tensor([seen[-length:]]))[0, -1]
        seen.append(draw(logits.float(), temperature, top_k, generator))
        yield seen[-1]


def draw(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """One token of logits [vocabulary]: of the `top_k` most probable ones."""
    if temperature == 0:
        return int(logits.argmax())
    if top_k is not None and top_k < len(logits):
        least = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return int(torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator))
