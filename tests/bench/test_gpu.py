"""Timing on a GPU with events that are counted; on a real one, where there is one, the whole path."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import jsonschema
import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.bench.bench import Bench, Options
from tensornet_attn.bench.case import Case
from tensornet_attn.bench.machine import LEAST, Rates, gpu_words, measured_rates, memory_limit, shortest
from tensornet_attn.bench.measure import by_events, captured, is_gpu, on_device, peak_bytes, sample_of
from tests.bench.schema import SCHEMA

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


class Stream:
    """What a device does in turn: a flush of 7 ms, a call of 2 ms; events have times once it has caught up."""

    def __init__(self) -> None:
        self.now, self.done, self.log = 0.0, False, list[str]()

    def event(self) -> Moment:
        return Moment(self)

    def does(self, what: str, milliseconds: float) -> None:
        self.log.append(what)
        self.now, self.done = self.now + milliseconds, False

    def synchronize(self) -> None:
        self.log.append("wait")
        self.done = True


class Moment:
    def __init__(self, stream: Stream):
        self.stream, self.at = stream, 0.0

    def record(self) -> None:
        self.stream.log.append("event")
        self.at = self.stream.now

    def elapsed_time(self, end: Moment) -> float:
        assert self.stream.done
        return end.at - self.at


def test_the_cache_is_emptied_before_each_call_and_outside_of_its_time() -> None:
    stream = Stream()
    sample = by_events(stream.event, stream.synchronize, lambda: stream.does("flush", 7))
    assert sample(lambda: stream.does("call", 2), 2) == pytest.approx(0.002)
    assert stream.log == ["flush", "event", "call", "event"] * 2 + ["wait"]


def test_a_cpu_is_no_gpu() -> None:
    assert [is_gpu(device) for device in ("cpu", "cuda", "cuda:1")] == [False, True, True]
    assert sample_of("cpu") is None
    assert memory_limit("cpu", 8.0) == 8.0
    assert gpu_words("cpu") is None


def test_the_shortest_sample_counts_and_the_first_call_does_not() -> None:
    times = iter([0.001, 3.0, 2.0, 2.5])
    assert shortest(lambda: None, lambda call, calls: next(times), 0.0) == 2.0
    assert next(times, None) is None
    assert LEAST == 3


def test_rates_of_this_machine() -> None:
    found = measured_rates("cpu", "float32")
    assert found.flops > 0 < found.bandwidth
    assert (found.dtype, found.side, found.copied) == ("float32", 512, 2**24)
    assert found.floor(found.flops, 2 * found.bandwidth) == 2.0
    device = Rates("bfloat16", 7e14, 3e12, 8192, 2**30).device
    assert (device.rate, device.bandwidth, device.width) == (7 * 10**14, 3 * 10**12, 2)


@needs_gpu
def test_events_of_a_gpu_are_counted() -> None:
    sample, (a, b) = on_device("cuda"), torch.randn(2, 4096, 4096, device="cuda")
    assert sample(lambda: a @ b, 3) > 0


@needs_gpu
def test_a_graph_of_a_gpu() -> None:
    x, total = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    replay = captured(lambda: total.add_(x))
    assert total.tolist() == [2.0] * 4  # two calls before the capture
    replay()
    assert total.tolist() == [3.0] * 4


def test_a_call_is_captured_after_two_others(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Played:
        def wait_stream(self, other: object) -> None:
            log.append("wait")

        def replay(self) -> None:
            log.append("replay")

    @contextmanager
    def graph(of: object, pool: object) -> Iterator[None]:
        log.append("begin")
        yield
        log.append("end")

    for name, own in {"Stream": Played, "CUDAGraph": Played, "current_stream": Played, "graph": graph}.items():
        monkeypatch.setattr(f"torch.cuda.{name}", own)
    monkeypatch.setattr("torch.cuda.stream", lambda stream: nullcontext())
    captured(lambda: log.append("call"))()
    assert log == ["wait", "call", "call", "wait", "begin", "call", "end", "replay"]


def test_what_a_graph_cannot_capture_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(call: Callable[[], object], pool: object) -> Callable[[], object]:
        if not made:
            made.append(call)
            return call
        raise RuntimeError("operation not permitted when stream is capturing")

    made: list[object] = []
    monkeypatch.setattr("tensornet_attn.bench.bench.captured", refused)
    case = Case(ta.load("mhsa", legs={"f": 16, "h": 2}), 8)
    (result,) = Bench(Options(("sdpa",), passes=("forward",), repeats=3, seconds=0, graphs=True)).results([case])
    assert [entry.status for entry in result.entries] == ["measured", "failed"]
    assert result.entry("sdpa").reason == (
        "a CUDA graph cannot capture it: RuntimeError: operation not permitted when stream is capturing"
    )


@needs_gpu
def test_the_peak_of_a_gpu() -> None:
    x = torch.ones(1 << 20, device="cuda")
    assert peak_bytes(lambda: (x + 1) * 2, "cuda") == 8 << 20


@needs_gpu
@pytest.mark.slow
def test_all_targets_on_a_gpu_at_a_small_length(run, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    outcome = run("bench", "--device", "cuda", "--n", "256", "--repeats", "3", "--seconds", "0", "-o", str(path))
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(path.read_text())
    jsonschema.validate(found, SCHEMA)
    ours = [entry for result in found["results"] for entry in result["contestants"] if entry["name"] == "triton"]
    assert {entry["status"] for entry in ours} == {"measured"}
    assert {result["dtype"] for result in found["results"]} == {"bfloat16"}
