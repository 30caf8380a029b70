"""What a plan is made for: lengths, limits in bytes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.cost.devices import DEVICES
from tensornet_attn.cost.target import TRAINING, Target, bytes_of, target_from
from tensornet_attn.graph import build
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [(1000, 1000), ("1000", 1000), ("2GiB", 2**31), ("2 gb", 2 * 10**9), ("1.5KiB", 1536), ("7B", 7), (None, None)],
)
def test_bytes(text: int | str | None, bytes_: int | None) -> None:
    assert bytes_of(text) == bytes_


@pytest.mark.parametrize("wrong", ["", "GiB", "2XB", "-1", 0, "0", True, "1e9", 2.5e30, "9" * 50])
def test_no_bytes(wrong: Any) -> None:
    assert refusal(bytes_of, wrong) == (
        f"memory is {wrong!r:.40}; give a positive number of bytes, e.g. 2GiB, 500MB or 1000000."
    )


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "workload": ({"workload": "decode"}, "there is no workload 'decode': did you mean 'decoding'?"),
    "n": ({"n": 0}, "'n' is 0; give an integer from 1 to 2147483647, e.g. n=1."),
    "m": ({"m": -1}, "'m' is -1; give an integer from 1 to 2147483647, e.g. m=1."),
    "batch": ({"batch": 0}, "'batch' is 0; give an integer from 1 to 2147483647, e.g. batch=1."),
    "dtype": (
        {"dtype": "int8", "memory": 1},
        "there is no dtype 'int8' in the cost model: known here: bfloat16, float16, float32, float64.",
    ),
    "device": ({"device_costs": "h20"}, "there is no device 'h20' in the cost table: did you mean 'h200'?"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    given, message = MISTAKES[name]
    assert refusal(target_from, **given) == message


def test_the_usual_aim() -> None:
    assert target_from() == TRAINING == Target()
    assert target_from("torch.bfloat16") == TRAINING  # no limit, nothing to count
    assert target_from("torch.bfloat16", memory="1kB").dtype == "bfloat16"
    assert target_from(device_costs=DEVICES["h200"]) == target_from(device_costs="h200")


def test_lengths() -> None:
    graph = build(ta.load(ta.load("mhsa").to_yaml().replace("n: query", "n: query 64")))
    assert Target().sizes(graph) == {"n": 64, "m": 1024, "...": 1}
    assert Target("decoding", batch=3).sizes(graph) == {"n": 1, "m": 4096, "...": 3}
    assert Target(n=32).sizes(graph) == {"n": 32, "m": 32, "...": 1}
    assert refusal(Target(n=65).sizes, graph) == (
        "'n' is 65, but the query leg 'n' has a maximum of 64; use n=64 or less."
    )


def test_relative_legs_follow() -> None:
    graph = build(ta.load("transformer_xl"))
    assert Target(n=5, m=7).sizes(graph) == {"n": 5, "m": 7, "p": 11, "...": 1}


def test_old_names_still_work_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match="'bucket' is deprecated; use workload="):
        assert ta.explain("mhsa", bucket="decoding") == ta.explain("mhsa", workload="decoding")
    with pytest.raises(ta.InputError, match="'bucket' is the deprecated name of 'workload'; give only 'workload'"):
        ta.explain("mhsa", bucket="decoding", workload="decoding")
