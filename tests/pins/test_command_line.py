"""The commands with their options and the values that these take are as pinned, and so are the JSON schemas."""

from __future__ import annotations

import inspect
import json
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import typer

from tensornet_attn.cli import main
from tensornet_attn.cli.app import app
from tests.pins.pinned import Pinned

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_options(command: str, pinned: Pinned) -> None:
    hints = inspect.get_annotations(inspect.unwrap(COMMANDS[command].callback), eval_str=True)
    pinned.check("options.txt", command, [option(one, hints) for one in COMMANDS[command].params])


def option(one: Any, hints: dict[str, Any]) -> str:
    """`--n N,... int = 512`: the names, the placeholder of the help, the type, the default and the bounds."""
    words = ["/".join([*one.opts, *one.secondary_opts])]
    words += [one.metavar] if one.metavar else []
    hint = hints.get(one.name, bool)
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    words.append(kind.__name__ if inspect.isclass(kind) and not get_args(kind) else str(kind))
    words += ["required"] if one.required else [f"= {one.default!r}"]
    words += [f"{name} {getattr(one, name)}" for name in ("min", "max") if getattr(one, name, None) is not None]
    words += ["repeated"] if one.multiple else [f"{one.nargs} values"] if one.nargs != 1 else []
    return " ".join(words)


def test_no_pin_without_a_command(pinned: Pinned) -> None:
    pinned.only("options.txt", sorted(COMMANDS))


CHOICES = [
    ("explain mhsa --backend", ("auto", "reference", "torch", "inductor", "triton")),
    ("explain mhsa --workload", ("training", "prefill", "decoding")),
    ("explain mhsa --device", ("generic", "flops", "cpu", "h200", "h200-bfloat16", "a100", "a100-bfloat16")),
    ("cost mhsa --dtype", ("float64", "float32", "bfloat16", "float16")),
    ("cost mhsa --over h=1,2 --measure", ("macs", "parameters", "peak", "routed", "saved", "training")),
    pytest.param("cost --table", ("epa", "fish", "mgk", "tuformer", "fmm", "swin"), marks=pytest.mark.slow),
    pytest.param("lattice mhsa --format", ("txt", "dot"), marks=pytest.mark.slow),
    ("draw mhsa -o - --format", ("txt", "dot", "mmd")),
]


@pytest.mark.parametrize(("command", "choices"), CHOICES)
def test_choices(command: str, choices: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Options that take one of some words take these, and no other."""
    codes = {choice: main([*command.split(), choice]) for choice in (*choices, "nonsense")}
    assert codes.pop("nonsense") in (1, 2)
    assert codes == dict.fromkeys(choices, 0), capsys.readouterr().err


@pytest.mark.parametrize("model", [False, True], ids=["design", "model"])
def test_schemas(model: bool, pinned: Pinned, capsys: pytest.CaptureFixture[str]) -> None:
    """The schema that editors use: what may stand where, without the words about it."""
    assert main(["schema", *(["--model"] if model else [])]) == 0
    schema = json.loads(capsys.readouterr().out)
    pinned.check("schemas.txt", "model" if model else "design", list(schema_lines(schema)))


def schema_lines(schema: dict[str, Any]) -> list[str]:
    """A line a definition: its name, its keys, and the digest of all of it but titles and descriptions."""
    definitions = {"(whole)": {k: v for k, v in schema.items() if k != "$defs"}, **schema.get("$defs", {})}
    found = []
    for name, body in sorted(definitions.items()):
        digest = sha256(json.dumps(without_words(body), sort_keys=True).encode()).hexdigest()[:16]
        keys = " ".join(f"{key}{'*' * (key in body.get('required', ()))}" for key in body.get("properties", ()))
        found.append(f"{name}: {keys or body.get('type', '-')}; {digest}")
    return found


def without_words(value: Any) -> Any:
    if isinstance(value, dict):
        words = ("title", "description", "examples")
        return {
            key: without_words(one) for key, one in value.items() if not (key in words and isinstance(one, str | list))
        }
    return [without_words(one) for one in value] if isinstance(value, list) else value


def test_committed_schemas_have_the_pinned_form(pinned: Pinned) -> None:
    for kind in ("design", "model"):
        file = Path(__file__).parents[2] / "docs" / f"{kind}.schema.json"
        pinned.check("schemas.txt", kind, schema_lines(json.loads(file.read_text(encoding="utf-8"))))
