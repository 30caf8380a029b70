"""Checkpoints: what is saved comes back, and what is none is refused with its reason."""

from __future__ import annotations

import io
import pickle
import zipfile

import pytest
import torch

import tensornet_attn as ta
from tests.refusals import refusal


def message(call, *arguments, **named) -> str:
    return refusal(call, *arguments, **named)


@pytest.mark.parametrize("name", ta.list_designs())
def test_every_shipped_design_comes_back(name: str, tmp_path) -> None:
    layer = ta.compile(name)
    ta.save(layer, tmp_path / "layer.pt")
    again = ta.restore(tmp_path / "layer.pt")
    assert (again.design, again.plan.graph) == (layer.design, layer.plan.graph)
    assert again.design.hash == layer.design.hash
    assert list(again.state_dict()) == list(layer.state_dict())
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in layer.state_dict().items())


def test_sizes_settings_dtype_and_biases_survive(tmp_path) -> None:
    child = {"tensornet": 1, "name": "own", "extends": "band", "weights": {"b": {"legs": "f", "init": "normal(1)"}}}
    child |= {"diagram": {"y": "A[h n m] V[m h d] Wo[h d f] + b[f] -> n f"}}
    layer = ta.compile(ta.load(child, legs={"f": 12, "h": 3}, settings={"k": 3}), dtype=torch.float64)
    ta.save(layer, tmp_path / "layer.safetensors")  # any name will do
    again = ta.restore(tmp_path / "layer.safetensors", backend="reference")
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    assert (again.design.legs["h"], again.plan.backend, again.b.dtype) == (3, "reference", torch.float64)
    torch.testing.assert_close(again(x), layer(x), rtol=1e-9, atol=1e-10)
    assert ta.restore(tmp_path / "layer.safetensors", dtype=torch.float32).b.dtype == torch.float32


@pytest.mark.parametrize(("name", "causal"), [("mhsa", True), ("alibi", False), ("mhsa", None), ("alibi", None)])
def test_the_causal_flag_survives_and_can_be_overridden(name: str, causal: bool | None, tmp_path) -> None:
    layer, path = ta.compile(ta.load(name, legs={"f": 16}), causal=causal), tmp_path / "layer.pt"
    ta.save(layer, path)
    flag = layer.plan.graph.causal
    assert ta.read_checkpoint(path).causal == flag
    assert ta.restore(path).plan.graph.causal == flag
    assert ta.restore(path, causal=not flag).plan.graph.causal != flag


def test_extra_tensors(tmp_path) -> None:
    layer, path = ta.compile(ta.load("mhsa", legs={"f": 16})), tmp_path / "layer.pt"
    ta.save(layer, path, {"embedding": torch.nn.Parameter(torch.ones(256, 16))})
    extra = ta.read_checkpoint(path).extra
    assert list(extra) == ["embedding"]
    assert torch.equal(extra["embedding"], torch.ones(256, 16))
    assert message(ta.save, layer, path, {"a": 1}) == "extra must hold tensors; 'a' has type int."
    wanted = "save expects a module from ta.compile or ta.models.make, not a Linear."
    assert message(ta.save, torch.nn.Linear(1, 1), path) == wanted


def test_a_place_that_cannot_be_written(tmp_path) -> None:
    layer = ta.compile(ta.load("mhsa", legs={"f": 16}))
    with pytest.raises(FileNotFoundError) as error:
        ta.save(layer, tmp_path / "none" / "layer.pt")
    assert error.value.filename == str(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


class Code:
    def __reduce__(self):
        return print, ("this is run",)


def content(**changed) -> dict[str, object]:
    layer = ta.compile(ta.load("mhsa", legs={"f": 16}))
    whole = {"format": "tensornet_attn checkpoint", "version": 1, "design": layer.design.to_yaml(), "causal": False}
    return whole | {"state": dict(layer.state_dict()), "extra": {}} | changed


KINDS = "its design, causal flag, state or extra entries are missing or have a wrong type."
UNREADABLE = "torch cannot read it, or it holds more than tensors and text."
WRONG = {
    "another file of torch's": ({"weight": torch.ones(2)}, "it is a PyTorch file with other content."),
    "a list": ([1, 2], "it is a PyTorch file with other content."),
    "a later version": (content(version=2), "its version is 2; this package reads 1."),
    "no state": ({k: v for k, v in content().items() if k != "state"}, KINDS),
    "no text": (content(design=3), KINDS),
    "numbers in its state": (content(state={"Wq": 3}), KINDS),
    "code": (content(extra={"a": Code()}), UNREADABLE),
}


@pytest.mark.parametrize("what", WRONG)
def test_other_files_of_torch(what: str, tmp_path, capsys) -> None:
    path = tmp_path / "file.pt"
    torch.save(WRONG[what][0], path)
    assert message(ta.restore, path) == f"'{path}' is not a checkpoint written by ta.save: {WRONG[what][1]}"
    assert capsys.readouterr().out == ""


def test_files_that_are_not_torchs(tmp_path) -> None:
    path = tmp_path / "file.pt"
    assert message(ta.restore, path) == f"cannot read '{path}': the file does not exist."
    for data in (b"", b"text\n", pickle.dumps({"format": 1})):
        path.write_bytes(data)
        assert (
            message(ta.restore, path) == f"'{path}' is not a checkpoint written by ta.save: it is not a PyTorch file."
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", "b")
    path.write_bytes(buffer.getvalue())
    assert message(ta.restore, path) == f"'{path}' is not a checkpoint written by ta.save: {UNREADABLE}"
    torch.save(content(), path)
    path.write_bytes(path.read_bytes()[:-200])
    assert message(ta.restore, path).startswith(f"'{path}' is not a checkpoint written by ta.save: ")


def test_a_design_that_is_refused_and_weights_of_another(tmp_path) -> None:
    path = tmp_path / "file.pt"
    torch.save(content(design="tensornet: 1\n"), path)
    with pytest.raises(ta.DesignError):
        ta.restore(path)
    torch.save(content(design=str(tmp_path / "secret.yaml")), path)  # text, never the name of a file to read
    (tmp_path / "secret.yaml").write_text(ta.load("mhsa").to_yaml())
    with pytest.raises(ta.DesignError):
        ta.restore(path)
    torch.save(content(state={"Wq": torch.ones(2)}), path)
    assert message(ta.restore, path).startswith(f"'{path}': the weights do not match its design 'mhsa': Missing key")
