"""Files that need only torch keep the relations of every layer, in blocks and in chunks, without tuning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn import compiler
from tensornet_attn.emit.functions import library
from tensornet_attn.plan import make
from tensornet_attn.plan.cache import LruCache
from tests.memory import slope, training_peak
from tests.relations.generator import shipped
from tests.relations.subject import NotApplicable, Subject
from tests.relations.table import RELATIONS
from tests.relations.text import normal_form

NAMES = ta.list_designs()
KEPT = ("backends_agree", "hidden_rows_do_not_matter", "large_masks_are_scores", "nothing_gives_nothing")
CHUNKED = tuple(
    "band fast_weight1 fast_weight2 fmm2_rows fmm3_causal gated_deltaproduct gpt_oss hard_lfish kda mamba1 mamba2"
    " minimax moa retnet rg_lru rwkv4 rwkv7".split()
)
IN_BLOCKS = ("epa_xl", "transformer_xl", "mgk_hard", "talking_heads", "thsa")
TUNING = (
    "autograd.Function cpuinfo ctypes custom_op get_num_threads is_plain mkldnn onednn register_vmap torch.ops".split()
)
TOKENS = 150  # more than two chunks, and several blocks of queries


@contextmanager
def plain_files(pairs: int | None = None) -> Iterator[None]:
    """In this context, modules run the files that need only torch; a block of queries has so many pairs."""
    sources, plans = patch.object(compiler, "_sources", LruCache(most=4)), patch.object(make, "PLANS", LruCache(most=4))
    alone = patch.object(compiler, "_emitted", partial(compiler._emitted, alone=True))
    blocks = patch("tensornet_attn.kernels.blocks.budget_of", lambda device: pairs or 1 << 17)
    with alone, blocks, sources, plans:
        yield


class Alone(Subject):
    """A design whose module is the file that needs only torch; `pairs`: of a block of queries."""

    pairs: int | None = None

    def compiled(self) -> torch.nn.Module:
        with plain_files(self.pairs):
            module = super().compiled()
        assert "from tensornet_attn" not in module.source
        return module


def same_at(subject: Subject, queries: int, keys: int) -> None:
    """Outputs and gradients are those of the reference at this length, with hidden keys."""
    rows = subject.rows((1,), queries, keys)
    options = subject.key_mask(1, rows.keys)
    subject.same(
        lambda *xs: subject.run(*xs, **options),
        lambda *xs: subject.run(*xs, **options, module=subject.oracle),
        rows.leaves,
        subject.oracle,
    )


@pytest.mark.parametrize("name", NAMES)
def test_relations(name: str) -> None:
    for relation in (RELATIONS[kept] for kept in KEPT):
        subject = Alone(normal_form(shipped(name)), "torch", 1)
        try:
            if relation.applies(subject.graph):
                relation.function(subject)
        except NotApplicable:
            continue


@pytest.mark.parametrize("name", CHUNKED)
def test_sums_in_chunks(name: str) -> None:
    same_at(Alone(normal_form(shipped(name)), "torch", 1), TOKENS, TOKENS)


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_maps_in_blocks(name: str) -> None:
    subject = Alone(normal_form(shipped(name)), "blocks", 1)
    subject.pairs = 64
    try:
        same_at(subject, 37, TOKENS)
    except NotApplicable:  # of one length
        same_at(subject, 37, 37)
    assert "blockwise(" in subject.module.source


@pytest.mark.parametrize("name", ["mhsa", "linear", "thsa"])
def test_memory_is_linear(name: str) -> None:
    with plain_files(1 << 14):
        ranks = {"r": 16, "s": 16} if name == "thsa" else {"h": 2, "d": 8}
        module = ta.compile(ta.load(name, legs={"f": 16, **ranks}), "torch", causal=name == "linear")
    lengths = (1024, 4096)
    assert slope(lengths, [training_peak(module, n, 16) for n in lengths]) <= 1.15


def test_no_file_is_tuned_for_a_processor() -> None:
    for name in NAMES:
        source = ta.emit_source(name, backend="torch")
        assert [word for word in TUNING if word in source] == [], name


def test_plain_functions_stand_in_for_others() -> None:
    """Each has the name of a function of the runtime, or is called by one that has."""
    forms = {name: item for name, item in library(plain=True).items() if item.module.endswith(".plain")}
    called = frozenset().union(*(item.reads for item in forms.values()))
    assert {*forms} - {*library()} - called <= {"attend_joined"}  # the emitter calls it


def test_a_file_of_mhsa_is_the_layer() -> None:
    assert ta.emit_source("mhsa").count("\n") <= 90
    assert ta.emit_source("linear").count("\n") <= 250
