"""Turns, samples, ratios and peaks of memory."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise

import pytest
import torch

from tensornet_attn.bench.bench import sentence
from tensornet_attn.bench.measure import LEAST_ROUNDS, by_clock, highest, interleaved, peak_bytes, turns
from tensornet_attn.bench.results import Spread, ratio, spread


class World:
    """A clock that only calls move, and a record of who was called."""

    def __init__(self, **cost: float):
        self.now, self.cost, self.log = 0.0, cost, list[str]()

    def calls(self):
        return {name: lambda name=name: self.call(name) for name in self.cost}

    def call(self, name: str) -> None:
        self.log.append(name)
        self.now += self.cost[name]

    def clock(self) -> float:
        return self.now


def test_contestants_take_turns_and_each_round_begins_with_the_next() -> None:
    world = World(a=1.0, b=2.0, c=3.0)
    timed = interleaved(world.calls(), repeats=4, seconds=1e9, clock=world.clock)
    assert "".join(world.log) == "abcabcbcacababc"  # a call of each to warm up, then rounds
    assert {name: (t.calls, t.seconds) for name, t in timed.items()} == {
        "a": (1, [1.0] * 4),
        "b": (1, [2.0] * 4),
        "c": (1, [3.0] * 4),
    }
    assert gc.isenabled()


def test_nobody_always_follows_the_same_one_from_rest() -> None:
    names = ["a", "b", "c"]
    firsts = {turns(names, place)[0] for place in range(3)}
    assert firsts == set(names)
    followers = [pair for place in range(3) for pair in pairwise(turns(names, place))]
    assert len(set(followers)) == 3
    assert turns([], 5) == []


def test_the_time_budget_ends_the_rounds_but_three() -> None:
    world = World(slow=10.0)
    timed = interleaved(world.calls(), repeats=50, seconds=0.0, clock=world.clock)
    assert len(timed["slow"].seconds) == LEAST_ROUNDS
    world = World(slow=10.0)
    timed = interleaved(world.calls(), repeats=50, seconds=65.0, clock=world.clock)
    assert len(timed["slow"].seconds) == 7


def test_fast_calls_are_repeated_until_a_sample_can_be_measured() -> None:
    world = World(fast=0.002, slow=1.0)
    timed = interleaved(world.calls(), repeats=3, seconds=1e9, clock=world.clock)
    assert timed["fast"].calls == 3
    assert timed["fast"].seconds == pytest.approx([0.002] * 3)
    assert timed["slow"].calls == 1
    assert world.log[:3] == ["fast", "fast", "slow"]  # warming up; a short call is timed again
    assert interleaved({"none": lambda: None}, 3, 1, clock=lambda: 0.0)["none"].calls == 200


@pytest.mark.parametrize("when", [1, 2, 4])
def test_who_fails_leaves_and_the_others_go_on(when: int) -> None:
    world, failing = World(good=1.0), iter([*[None] * (when - 1), ValueError("too much")])

    def bad() -> None:
        if (error := next(failing)) is not None:
            raise error

    timed = interleaved({"bad": bad, **world.calls()}, repeats=5, seconds=1e9, clock=world.clock)
    assert str(timed["bad"].failed) == "too much"
    assert timed["good"].seconds == [1.0] * 5


def test_rounds_that_warm_up_do_not_count() -> None:
    world = World(a=1.0, b=2.0)
    timed = interleaved(world.calls(), repeats=3, seconds=1e9, clock=world.clock, warm=4.0)
    assert "".join(world.log) == "ab" + "abba" + "abbaab"  # one call each, two rounds, then the three that count
    assert [t.seconds for t in timed.values()] == [[1.0] * 3, [2.0] * 3]


def test_what_compiles_at_first_is_counted_anew_while_warming_up() -> None:
    world = World(a=0.001)
    costs = iter([3.0])

    def call() -> None:
        world.now += next(costs, 0.001)

    assert interleaved({"a": call}, 3, 1e9, world.clock)["a"].calls == 1
    costs = iter([3.0])
    assert interleaved({"a": call}, 3, 1e9, world.clock, warm=0.5)["a"].calls in (5, 6)  # 0.001 is rounded


def test_a_device_may_time_calls_itself() -> None:
    world = World(a=1.0)

    def halves(call, calls: int) -> float:
        return by_clock(world.clock)(call, calls) / 2

    assert interleaved(world.calls(), 3, 1e9, world.clock, halves)["a"].seconds == [0.5] * 3


def test_an_error_keeps_no_tensor_alive() -> None:
    kept = list[weakref.ref]()

    def bad() -> None:
        held = torch.ones(3)
        kept.append(weakref.ref(held))
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904

    timed = interleaved({"bad": bad, "good": lambda: None}, 3, 0.0)
    assert str(timed["bad"].failed) == "second"
    assert kept[0]() is None


def test_spread_and_ratio() -> None:
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)
    assert spread([1.0, 2.0, 3.0, 4.0]) == Spread(2.5, 1.75, 3.25)
    # medians 6 and 2; round by round 1, 3, 12
    assert ratio([6.0, 3.0, 12.0], [6.0, 1.0, 1.0]) == Spread(6.0, 2.0, 7.5)
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


def test_the_peak_is_what_is_alive_at_once() -> None:
    x = torch.ones(1000)  # alive before: does not count

    def call() -> torch.Tensor:
        a = x + 1  # 4 kB
        b = a * 2  # 8 kB
        del a
        c = b - 1  # 8 kB
        return c + b  # 12 kB

    assert peak_bytes(call) == 12_000
    assert peak_bytes(lambda: x.add_(0)) < 64  # nothing but the number 0 itself


def test_a_backward_counts_what_is_kept_and_the_gradients() -> None:
    x = torch.ones(1000, requires_grad=True)

    def call() -> torch.Tensor:
        return torch.autograd.grad(x.exp().sum(), x)[0]

    assert 8_000 <= peak_bytes(call) < 8_100  # exp(x) is kept, and the gradient


def test_freed_memory_is_given_back_in_the_order_of_time() -> None:
    assert highest([]) == 0
    assert highest([(2, 10), (1, 5), (3, -12), (4, 4)]) == 15


def test_errors_become_one_line() -> None:
    assert sentence(ValueError("\nfirst\nsecond")) == "ValueError: first"
    assert sentence(MemoryError()) == "out of memory: "
    assert sentence(torch.OutOfMemoryError("CUDA: no")) == "out of memory: CUDA: no"
    text = "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried 1 byte."
    assert sentence(RuntimeError(text)) == f"out of memory: {text}"
