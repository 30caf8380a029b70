"""What `save_pretrained` of a converted Hugging Face model writes: its weights, and what each attention became."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from tensornet_attn.convert.wrap import Swapped
from tensornet_attn.errors import InputError
from tensornet_attn.files import write_whole

KEY = "tensornet_attn"
# What config.json names as the file of weights, which is not there: where this package is not asked, from_pretrained
# says so and stops, in the place of a model with random attention.
INSTEAD = "these weights are read by tensornet_attn.load_converted.safetensors"


class SavePretrained:
    """In the place of a converted model's `save_pretrained`; `config.json` then says what each attention became.

    An object and no method, so that copies and pickles of the model save themselves.
    """

    def __init__(self, model: Any):
        self.model = model

    def __call__(
        self,
        save_directory: Any,
        is_main_process: bool = True,
        *given: Any,
        push_to_hub: bool = False,
        **options: Any,
    ) -> None:
        """As the model's own. Raises InputError where it is to push: `push_to_hub` of the model does both."""
        if push_to_hub:
            name = type(self.model).__name__
            raise InputError(
                f"{name}: a converted model is pushed by model.push_to_hub(repo_id), which saves it first."
            )
        if given or not is_main_process:  # some classes know nothing of it
            given = (is_main_process, *given)
        type(self.model).save_pretrained(self.model, save_directory, *given, **options)
        path = Path(save_directory) / "config.json"
        if is_main_process and path.exists():
            config = json.loads(path.read_text(encoding="utf-8"))
            config |= {"quantization_config": described(self.model), "transformers_weights": INSTEAD}
            write_whole(path, f"{json.dumps(config, indent=2)}\n".encode())


def described(model: nn.Module) -> dict[str, Any]:
    """The designs of a model as texts, and each attention: where it stands, its design, what it took over.

    As a quantisation method is described, which `pretrained.py` registers.
    """
    designs: list[str] = []
    found: dict[int, dict[str, Any]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, Swapped):
            continue
        if id(module) in found:
            found[id(module)]["paths"].append(path)
            continue
        text = module.design.design.to_yaml()
        if text not in designs:
            designs.append(text)
        found[id(module)] = {"paths": [path], "design": designs.index(text), **asdict(module.place)}
    return {"quant_method": KEY, "designs": designs, "attentions": list(found.values())}
