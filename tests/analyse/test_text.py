"""Text as inputs: windows of bytes, embeddings, positions, and what is no text."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.runtime.positions import sinusoid
from tests.refusals import refusal


def layer(name: str, **legs) -> torch.nn.Module:
    return ta.compile(ta.load(name, legs=legs))


def message(*arguments, **named) -> str:
    return refusal(ta.text_inputs, *arguments, **named)


@pytest.fixture
def text(tmp_path) -> str:
    (tmp_path / "a.txt").write_bytes(bytes(range(97, 117)))
    return str(tmp_path / "a.txt")


def test_windows_of_one_input(text: str) -> None:
    table = torch.randn(256, 8)
    (x,) = ta.text_inputs(layer("mhsa", f=8), text, length=6, batch=2, embedding=table)
    assert x.shape == (2, 6, 8)
    place = sinusoid(torch.arange(6), 8, torch.float32)
    for window in range(2):
        for n in range(6):
            torch.testing.assert_close(x[window, n], table[97 + 6 * window + n] + place[n])
    (x,) = ta.text_inputs(layer("mhsa", f=8), text, length=6, batch=50)
    assert x.shape == (3, 6, 8)  # the last two bytes are no window
    (x,) = ta.text_inputs(layer("mhsa", f=8), text)
    assert x.shape == (1, 20, 8)  # a text shorter than a window


def test_the_seed_decides_and_the_dtype_is_the_modules(text: str) -> None:
    module = layer("mhsa", f=8).double()
    one, two, three = (ta.text_inputs(module, text, length=5, seed=seed)[0] for seed in (1, 1, 2))
    assert one.dtype == torch.float64
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


def test_a_second_input_gets_the_next_window_and_a_default_none(text: str) -> None:
    x, memory = ta.text_inputs(layer("cross", f=8), text, length=5, batch=3)
    assert torch.equal(memory[:2], x[1:])
    assert len(ta.text_inputs(layer("transformer_xl", f=8), text)) == 1


def test_a_largest_length_is_kept(text: str) -> None:
    child = {"tensornet": 1, "name": "own", "extends": "mhsa", "legs": {"m": "key 4"}, "weights": {"b": "m"}}
    child |= {"diagram": {"A": {"softmax": "m", "of": "Q[n h d] K[m h d] + b[m] -> h n m"}}}
    (x,) = ta.text_inputs(layer(child, f=8), text)
    assert x.shape == (5, 4, 8)
    assert message(layer("mhsa", f=8), text, length=0) == "length is 0; give at least 1."


def test_a_character_may_be_cut_where_reading_ends(tmp_path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("aé".encode() * 100)
    assert ta.text_inputs(layer("mhsa", f=8), str(path), length=4, batch=1)[0].shape == (1, 4, 8)


def test_what_is_no_text(tmp_path) -> None:
    path = tmp_path / "a.txt"
    module = layer("mhsa", f=8)
    path.write_bytes(b"ab\xffcd")
    assert message(module, str(path)) == f"'{path}': byte 2 is not UTF-8; save it as UTF-8 text."
    path.write_bytes("é".encode()[:1])
    assert message(module, str(path)) == f"'{path}': byte 0 is not UTF-8; save it as UTF-8 text."
    path.write_bytes(b"")
    assert message(module, str(path)) == f"'{path}' is empty; give a file with text."
    with pytest.raises(FileNotFoundError):
        ta.text_inputs(module, str(tmp_path / "none.txt"))
    path.write_bytes(b"abc")
    wanted = "the checkpoint's embedding has shape [256, 4], but bytes need [256, 8]."
    assert message(module, str(path), embedding=torch.ones(256, 4)) == wanted


def test_an_input_that_text_cannot_be(text: str) -> None:
    child = {"tensornet": 1, "name": "own", "extends": "mhsa", "legs": {"g": "head 2"}, "inputs": {"x": "n g f"}}
    child["weights"] = {"Wq": "g f h d", "Wk": "g f h d", "Wv": "g f h d"}
    child["diagram"] = {
        step: f"x[{leg} g f] W{step.lower()}[g f h d] -> {leg} h d"
        for step, leg in (("Q", "n"), ("K", "m"), ("V", "m"))
    }
    assert (
        message(layer(child), text) == "own: input 'x' has legs 'n g f', but text needs a sequence leg and one other."
    )


def test_random_bytes_that_are_repeated() -> None:
    module, table = layer("mhsa", f=8), torch.randn(256, 8)
    (x,) = ta.repeated_inputs(module, length=11, batch=3, seed=4, embedding=table)
    tokens = ta.repeated_tokens(256, 5, 3, seed=4)
    assert x.shape == (3, 10, 8)
    torch.testing.assert_close(x, table[tokens] + sinusoid(torch.arange(10), 8, torch.float32))
    assert ta.repeated_inputs(module)[0].shape == (8, 128, 8)
    assert ta.repeated_inputs(module, length=2000)[0].shape == (8, 512, 8)  # no byte stands twice
    assert ta.repeated_inputs(module, length=3) == ()
    x, memory = ta.repeated_inputs(layer("cross", f=8), length=6)
    assert torch.equal(x, memory)
