"""What calls that are refused say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tensornet_attn.errors import InputError


def refusal(call: Callable[..., Any], *given: Any, **options: Any) -> str:
    """The message of the InputError that a call raises."""
    with pytest.raises(InputError) as error:
        call(*given, **options)
    return str(error.value)
