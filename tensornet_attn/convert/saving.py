"""Saving a converted model by Hugging Face's own calls is refused: `from_pretrained` could not give it back.

It makes the attention that `config.json` names, finds no weights for it, and draws them at random.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from torch import nn

from tensornet_attn.errors import InputError

CALLS = ("save_pretrained", "push_to_hub", "save", "save_to_hub")  # the last two are sentence-transformers'
INSTEAD = (
    "save its state dict, torch.save(model.state_dict(), 'model.pt'), and load that into the original model after the "
    "same convert_model, model.load_state_dict(torch.load('model.pt'))."
)


def refuse_saving(module: nn.Module) -> None:
    """Makes the calls by which a module would save itself raise InputError before they write anything."""
    if hasattr(module, "save_pretrained"):
        for name in CALLS:
            if hasattr(module, name):
                setattr(module, name, partial(refused, type(module).__name__, name))


def refused(model: str, call: str, *args: Any, **options: Any) -> NoReturn:
    """Stands in the place of a call, also in copies and pickles of the model."""
    raise InputError(
        f"{model}: {call} is not possible after convert_model: from_pretrained would load it with random attention; "
        f"{INSTEAD}"
    )
