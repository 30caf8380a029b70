"""What was trained is judged and written with, from its folder alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.train import trained as sampling
from tensornet_attn.train.trained import open_run
from tests.refusals import refusal
from tests.train import runs


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    ta.train(runs.everything(steps=6), out=folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    ta.train(runs.small(task="char_lm", options={"length": 8}, steps=3, eval_every=3), out=folder)
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    ta.train(runs.small(task="listops_mini", options={}, steps=1, eval_samples=1), out=folder)
    return folder


def test_the_score_is_that_of_the_last_validation(out: Path) -> None:
    means = open_run(out).judge("validation", samples=12).means()
    wanted = runs.curve(out)[-1]
    assert means == {name: pytest.approx(wanted[f"eval_{name}"]) for name in means}
    assert list(means) == ["loss", "bits_per_character", "accuracy"]
    assert open_run(out).judge("test").parts["loss"][1] > 12 * 8


def test_equal_probabilities_have_the_bits_of_the_vocabulary(text: Path) -> None:
    trained = open_run(text)
    torch.nn.init.zeros_(trained.model.output.weight)
    for score in (trained.judge("test"), trained.slide("test", stride=3)):
        assert score.means()["bits_per_character"] == pytest.approx(math.log2(28), rel=1e-6)


@pytest.mark.parametrize(("context", "stride"), [(None, 1), (5, 1), (8, 3), (6, 6)])
def test_sliding_windows_score_what_a_plain_loop_scores(text: Path, context: int | None, stride: int) -> None:
    """Window by window, place by place: the last `stride` of each, all of the first."""
    trained, length = open_run(text), context or 8
    tokens = torch.from_numpy(trained.task.source.texts["test"][:90].astype("int64"))
    trained.task.source.texts["test"] = tokens.numpy()
    total, right, done, end = 0.0, 0, 0, length
    while done < 89:
        answers = trained.model(tokens[None, end - length : end])[0].detach().log_softmax(-1)
        for place in range(done, end):
            scored = answers[place - end]
            total -= float(scored[tokens[place + 1]])
            right += int(scored.argmax() == tokens[place + 1])
        done, end = end, min(end + stride, 89)
    found = trained.slide("test", context, stride, batch=7)
    assert found.parts["loss"] == (pytest.approx(total, rel=1e-5), 89)
    assert found.parts["accuracy"] == (right, 89)
    assert found.means()["bits_per_character"] == pytest.approx(total / 89 / math.log(2), rel=1e-5)
    windows = trained.slide("test", context, stride, samples=2, batch=7)
    assert windows.parts["loss"][1] == length + stride


def test_a_memory_is_no_sliding_window(out: Path) -> None:
    wanted = "'everything' has a memory, which replaces sliding windows: evaluate it without them."
    assert refusal(lambda: open_run(out).slide("test")) == wanted


def test_checkpoints_by_step_and_by_folder(out: Path) -> None:
    path = out / "checkpoints" / "step-00000003"
    assert open_run(out).saved.step == 6
    assert {open_run(out, name).saved.step for name in ("3", "step-00000003", str(path))} == {3}
    assert refusal(open_run, out, "4") == f"'{out / 'checkpoints'}' has no checkpoint '4'; choose a step of 3, 6."


def test_what_is_no_run(tmp_path: Path, out: Path) -> None:
    assert refusal(open_run, tmp_path) == f"'{tmp_path}' is not the folder of a run: it has no 'run.yaml'."
    (tmp_path / "run.yaml").write_bytes((out / "run.yaml").read_bytes())
    assert refusal(open_run, tmp_path) == f"'{tmp_path / 'checkpoints'}' has no complete checkpoint; resume the run."


def test_text_goes_on(out: Path) -> None:
    trained = open_run(out)
    text = sampling.sample(trained, "the ", 20, seed=1)
    assert text.startswith("the ")
    assert len(text) == 24
    assert text == sampling.sample(trained, "the ", 20, seed=1)
    assert text != sampling.sample(trained, "the ", 20, seed=2)
    greedy = [sampling.sample(trained, "the ", 12, 0.0, seed=seed) for seed in (1, 2)]
    assert greedy[0] == greedy[1] == sampling.sample(trained, "the ", 12, 1.0, top_k=1)


def test_text_is_that_of_a_plain_loop(out: Path, text: Path, tmp_path: Path) -> None:
    """Before and behind the end of the window, of designs with a cache and of one without."""
    ta.train(runs.small(task="char_lm", options={"length": 8}, steps=1, design="fmm_lra_release"), out=tmp_path)
    for trained in map(open_run, (out, text, tmp_path)):
        trained.model.double()
        found = trained.task.alphabet.encode("the ")
        for _ in range(12):
            found.append(int(trained.model(torch.tensor([found[-8:]]))[0, -1].argmax()))
        assert sampling.sample(trained, "the ", 12, 0.0) == trained.task.alphabet.decode(found)


def test_choices_are_those_of_the_logits() -> None:
    generator, logits = torch.Generator().manual_seed(0), torch.tensor([2.0, 0.0, 1.0, -torch.inf])
    found = [sampling.draw(logits, 1.0, 2, generator) for _ in range(400)]
    assert set(found) == {0, 2}
    assert found.count(0) / 400 == pytest.approx(1 / (1 + torch.e**-1), abs=0.06)
    cold = [sampling.draw(logits, 0.1, None, generator) for _ in range(50)]
    assert set(cold) == {0}


def test_prompts_that_are_refused(out: Path, classifier: Path) -> None:
    for prompt, message in (
        ("", "the prompt is empty; give at least one character or word."),
        ("é", "'é' is not in the vocabulary: "),
    ):
        assert refusal(sampling.sample, open_run(out), prompt, 3).startswith(message)
    wanted = "'mhsa' is a sequence_classifier; sampling needs a language model."
    assert refusal(sampling.sample, open_run(classifier), "the", 3) == wanted
