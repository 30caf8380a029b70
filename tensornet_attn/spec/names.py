"""Checks the names in a design: valid identifiers that Python, nn.Module and the call do not reserve."""

from __future__ import annotations

import keyword

from tensornet_attn import limits
from tensornet_attn.spec.expression import IDENTIFIER

CALL_NAMES = frozenset(
    "mask key_mask noise cache position design source plan explain capture tp_plan new_cache".split()
)
MODULE_NAMES = frozenset(
    """
    T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches
    eval extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict
    modules mtia named_buffers named_children named_modules named_parameters parameters register_backward_hook
    register_buffer register_forward_hook register_forward_pre_hook register_full_backward_hook
    register_full_backward_pre_hook register_load_state_dict_post_hook register_load_state_dict_pre_hook
    register_module register_parameter register_state_dict_post_hook register_state_dict_pre_hook requires_grad_
    set_extra_state set_submodule share_memory state_dict to to_empty train training type xpu zero_grad
    """.split()
)  # public attributes of torch.nn.Module; frozen with version 1 of the language, a test compares it with torch's


def identifier_problem(name: str) -> tuple[str, str] | None:
    """(message, hint) if a text is not a valid identifier, otherwise None."""
    if len(name) > limits.NAME_LENGTH:
        return f"this name has {len(name)} characters.", f"use at most {limits.NAME_LENGTH}."
    if not IDENTIFIER.match(name):
        return f"'{name}' is not a valid name.", "start with a letter, then use letters, digits and _ (ASCII)."
    if keyword.iskeyword(name):
        return f"'{name}' is a Python keyword.", "use another name, or another case."
    return None


def tensor_problem(name: str) -> tuple[str, str] | None:
    """Like `identifier_problem`, and rejects names that a module reserves."""
    if name in CALL_NAMES:
        return f"'{name}' is an argument or an attribute of the compiled module.", "use another name."
    if name in MODULE_NAMES:
        return f"'{name}' is an attribute of every nn.Module.", "use another name."
    return identifier_problem(name)
