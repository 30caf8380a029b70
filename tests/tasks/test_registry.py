"""Tasks by name, and what is said of options that are wrong."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tensornet_attn.tasks import Recipe, describe, list_tasks, task_named
from tests.refusals import refusal

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("mqr", {}, "there is no task 'mqr': did you mean 'mqar'?"),
    ("mqar", {"pair": 8}, "task 'mqar' has no option 'pair': did you mean 'pairs'?"),
    ("mqar", {"pairs": 0}, "task 'mqar', option 'pairs': input should be greater than or equal to 1, got 0."),
    ("mqar", {"filler": "b"}, "task 'mqar', option 'filler': input should be 'blank' or 'random', got 'b'."),
    ("mqar", {"length": 31}, "task 'mqar': length 31 is too short for 8 pairs and their queries; set at least 32."),
    ("mqar", {"vocabulary": 16}, "task 'mqar': a vocabulary of 16 has 7 keys for 8 pairs; set at least 18."),
    ("copy", {"length": 4}, "task 'copy': length 4 is too short for 0 w 0 w; set at least 5."),
    (
        "selective_copy",
        {"length": 31},
        "task 'selective_copy': length 31 is too short for 16 tokens and their copy; set at least 32.",
    ),
    (
        "listops",
        {"max_depth": 3},
        "task 'listops': a tree of depth 3 with at most 10 arguments has at most 122 tokens; reduce min_length 500.",
    ),
    (
        "listops",
        {"max_length": 501},
        "task 'listops': no length lies between min_length 500 and max_length 501; raise max_length.",
    ),
    (
        "wikitext",
        {},
        "task 'wikitext' needs option 'path': the folder of wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens.",
    ),
]


@pytest.mark.parametrize(("name", "options", "message"), WRONG)
def test_a_wrong_option_is_told_in_a_sentence(name: str, options: dict[str, Any], message: str) -> None:
    assert refusal(task_named, name, **options) == message


def test_a_seed_is_a_whole_number() -> None:
    assert refusal(task_named, "mqar", seed="0") == "seed is '0'; give a whole number."


def test_several_wrong_options_are_told_at_once() -> None:
    assert refusal(task_named, "copy", lenght=3, symbols=0) == (
        "task 'copy', option 'symbols': input should be greater than or equal to 1, got 0.\n"
        "task 'copy' has no option 'lenght': did you mean 'length'?"
    )


LEAST = [
    ("mqar", {"vocabulary": 18}),
    ("mqar", {"length": 32}),
    ("copy", {"length": 5}),
    ("selective_copy", {"length": 32}),
]


@pytest.mark.parametrize(("name", "options"), LEAST)
def test_the_least_that_is_named_is_enough(name: str, options: dict[str, Any]) -> None:
    task_named(name, **options).samples("train", 0, 2)


def test_a_split_that_is_not_there_or_too_short() -> None:
    task = task_named("copy", test=10)
    assert refusal(task.samples, "valid", 0, 1) == "there is no split 'valid': did you mean 'validation'?"
    assert refusal(task.samples, "test", 8, 3) == "split 'test' of task 'copy' has 10 samples, not 8 to 10."
    wanted = "samples(start=-1, count=3): start must be at least 0, count at least 1."
    assert refusal(task.samples, "train", -1, 3) == wanted
    wanted = "split 'train' of task 'copy' is unlimited: use samples(split, start, count)."
    assert refusal(task.batches, "train", 3) == wanted


def test_the_list_of_tasks_says_what_each_is() -> None:
    assert [recipe.name for recipe in list_tasks("lra_*")] == [
        "lra_image", "lra_listops", "lra_pathfinder", "lra_retrieval", "lra_text",
    ]  # fmt: skip
    names = [recipe.name for recipe in list_tasks()]
    assert len(names) == len(set(names)) == 18
    assert describe(list_tasks("copy")) == "copy                0 w 0 w over a few symbols: repeat w.\n"


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("name", 3, "str"),
        ("version", "1", "int"),
        ("costly", None, "bool"),
        ("options", 3, "type"),
        ("open", "function", "Callable"),
    ],
)
def test_a_field_of_another_type_is_refused_by_its_name(field: str, value: object, kind: str) -> None:
    fields = {
        name: getattr(task_named("copy").recipe, name) for name in ("name", "version", "about", "options", "open")
    }
    assert refusal(Recipe, **{**fields, field: value}) == f"'{field}' of a Recipe is {value!r}; its type is {kind}."


@pytest.mark.parametrize("recipe", [recipe for recipe in list_tasks() if not recipe.drawn], ids=lambda r: r.name)
def test_a_task_whose_files_are_not_there_says_which_it_looked_for_and_what_to_put_there(recipe: Recipe) -> None:
    given = {"data": "mnist"} if recipe.name == "image_generation" else {}
    looked, _, put = refusal(task_named, recipe, path="no/such", **given).partition(f". Task '{recipe.name}': ")
    assert looked.startswith("'no/such")
    assert (
        "no file " in looked
        or "is not a folder with files " in looked
        or looked.endswith("cannot be read: No such file or directory")
    )
    assert put == recipe.files
    assert put.startswith("path")


def test_every_option_says_what_it_is() -> None:
    for recipe in list_tasks():
        for name, field in recipe.options.model_fields.items():
            assert field.description, f"{recipe.name}: {name}"


def test_a_task_says_what_fixes_its_samples_and_is_made_again_from_that() -> None:
    task = task_named("mqar", seed=3, pairs=4)
    said = task.as_dict()
    again = task_named(said["task"], seed=said["seed"], **said["options"])
    assert again.as_dict() == said
    assert said["options"]["pairs"] == 4
    assert (said["task"], said["version"], said["seed"]) == ("mqar", 1, 3)


def test_listing_tasks_and_checking_options_leaves_torch_out() -> None:
    code = "import sys, tensornet_attn as ta; ta.tasks.list_tasks(); ta.tasks.task_named('mqar')"
    code += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")
