"""Generated text as a module: loaded once, found by torch.compile and by tracebacks, forgotten with its last owner."""

from __future__ import annotations

import copy
import gc
import linecache
import re
import sys
import traceback
from types import ModuleType

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.emit.load import KEPT, load, load_class
from tensornet_attn.runtime.blockwise import FUNCTIONS

SOURCE = "class Two:\n    def value(self):\n        return 1 / 0\n"


def emitted() -> set[str]:
    gc.collect()
    return {name for name in sys.modules if name.startswith("tensornet_attn._emitted_")}


def test_equal_texts_are_loaded_once() -> None:
    assert load(SOURCE, "two") is load(SOURCE, "two")
    assert load(SOURCE, "two") is not load(SOURCE + "\n", "two")
    assert sys.modules[load_class(SOURCE, "Two", "two").__module__] is load(SOURCE, "two")


def test_tracebacks_show_the_line() -> None:
    with pytest.raises(ZeroDivisionError) as error:
        load_class(SOURCE, "Two", "two")().value()
    last = traceback.extract_tb(error.value.__traceback__)[-1]
    assert last.line == "return 1 / 0"
    assert last.filename.startswith("<tensornet_attn._emitted_two_")


def crowd_out() -> None:
    """Loads as many other texts as are kept."""
    for i in range(KEPT):
        load(f"x = {i}\n", "crowd")


def test_a_module_is_forgotten_with_its_last_owner_and_use() -> None:
    before = emitted()
    first = ta.compile(ta.load("mhsa", legs={"f": 1976, "h": 13}), "torch")
    second = copy.deepcopy(first)
    (name,) = emitted() - before
    file = sys.modules[name].__file__
    assert file in linecache.cache
    del first
    crowd_out()
    assert name in emitted()
    assert second(torch.zeros(1, 2, 1976)).shape == (1, 2, 1976)
    del second
    assert name not in emitted()
    assert file not in linecache.cache


def test_a_module_without_owner_stays_for_a_while() -> None:
    module = load(SOURCE, "two")
    assert load(SOURCE, "two") is module
    crowd_out()
    assert module.__name__ not in emitted()


def test_a_text_that_fails_leaves_nothing() -> None:
    before = emitted()
    with pytest.raises(ZeroDivisionError):
        load("1 / 0\n", "text_that_fails")
    assert emitted() <= before
    assert not [file for file in linecache.cache if "emitted_text_that_fails" in file]


def test_functions_that_operations_call_by_name_are_registered_once_and_stay() -> None:
    design = ta.load("talking_heads", legs={"f": 32})
    first = ta.compile(design)
    name = load(first.source, "talking_heads").__name__
    assert [tile for tile in FUNCTIONS if tile.startswith(name)] == [f"{name}.y_1_rows"]
    out = first(torch.zeros(1, 3, 32))  # its backward is still to come
    del first
    crowd_out()
    assert name in emitted()
    assert load(ta.compile(design).source, "talking_heads") is sys.modules[name]
    assert [tile for tile in FUNCTIONS if tile.startswith(name)] == [f"{name}.y_1_rows"]
    out.sum().backward()


def test_the_backward_outlives_a_module_that_is_forgotten() -> None:
    module = ta.compile(ta.load("sigma_moe", legs={"f": 32}))
    name, out = load(module.source, "sigma_moe").__name__, module(torch.zeros(1, 3, 32))
    del module
    crowd_out()
    assert name not in emitted()
    out.sum().backward()


def test_files_under_one_name_keep_functions_of_their_own() -> None:
    """Two designs, each with a function `y_1_rows`, imported one after the other under one name."""
    x, found = torch.randn(2, 3, 512, dtype=torch.float64), []
    designs = [ta.load(name) for name in ("talking_heads", "thsa")]
    for design in designs:
        source, module = ta.emit_source(design, package=True), ModuleType("twice")
        assert "def y_1_rows(" in source
        exec(source, module.__dict__)
        found.append(vars(module)[class_of(source)](dtype=torch.float64))
    assert list(FUNCTIONS)[-2:] == ["twice.y_1_rows", "twice.y_1_rows_2"]
    for design, layer in zip(designs, found, strict=True):
        oracle = ta.reference(design, dtype=torch.float64)
        oracle.load_state_dict(layer.state_dict())
        torch.testing.assert_close(layer(x), oracle(x))


def test_a_file_may_be_imported_twice_under_one_name() -> None:
    source = ta.emit_source(ta.load("sigma_moe", legs={"f": 32}), backend="cpp")
    assert "torch.library" in source
    x = torch.randn(2, 3, 32, requires_grad=True)
    modules = [ModuleType("twice"), ModuleType("twice")]
    for module in modules:
        sys.modules["twice"] = module
        exec(source, module.__dict__)
    torch.manual_seed(0)
    layers = [vars(module)[class_of(source)]() for module in modules]
    layers[1].load_state_dict(layers[0].state_dict())
    results = [layer(x).sum() for layer in layers]
    torch.testing.assert_close(*(torch.autograd.grad(result, x)[0] for result in results))
    del sys.modules["twice"]


def class_of(source: str) -> str:
    """The name of the class in an emitted text."""
    return re.findall(r"^class (\w+)\(nn.Module\)", source, re.MULTILINE)[0]
