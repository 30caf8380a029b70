"""Completion in the playground's editor: what the JSON schema allows where the cursor stands."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest

from tensornet_attn.spec import json_schema
from tests.playground.conftest import SOURCES

HEAD = "tensornet: 1\nname: mine\nextends: mhsa\n"
SCRIPT = """
const { suggestions } = await import(process.argv[1]);
const { schema, texts } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const found = texts.map((text) => {
  const at = text.indexOf("|");
  return suggestions(schema, text.replace("|", ""), at).map((one) => one.label);
});
console.log(JSON.stringify(found));
"""
Complete = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def complete() -> Complete:
    """`complete("legs:\\n  |")`: what may stand at the bar."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")

    def call(text: str) -> list[str]:
        script = f"(async () => {{{SCRIPT}}})()"
        request = json.dumps({"schema": json_schema(), "texts": [text]})
        command = [node, "-e", script, (SOURCES / "completion.js").as_uri()]
        done = subprocess.run(command, input=request, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: list[list[str]] = json.loads(done.stdout)
        return found[0]

    return call


def test_keys_of_a_file(complete: Complete) -> None:
    found = complete(f"{HEAD}|")
    assert {"legs", "inputs", "weights", "diagram", "output"} <= {*found}
    assert not {"tensornet", "name", "extends"} & {*found}  # stand there already


def test_keys_of_a_box_are_those_of_its_kind(complete: Complete) -> None:
    assert {"softmax", "rmsnorm", "of"} <= {*complete(f"{HEAD}diagram:\n  A:\n    |\n")}
    block = complete(f"{HEAD}diagram:\n  A:\n    softmax: m\n    |\n")
    assert {"scale", "mask", "of"} <= {*block}
    assert "rmsnorm" not in block
    flow = complete(f"{HEAD}diagram:\n  A: {{softmax: m, |}}\n")
    assert {*flow} == {*block}


def test_values(complete: Complete) -> None:
    assert complete(f"{HEAD}causal: |") == ["true", "false"]
    assert "causal" in complete(f"{HEAD}diagram:\n  A: {{softmax: m, mask: |}}\n")
    assert "causal" in complete(f"{HEAD}diagram:\n  A: {{softmax: m, mask: [|]}}\n")
