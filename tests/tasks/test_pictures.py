"""Pictures pixel by pixel: MNIST's idx files and CIFAR-10's records as sequences to be generated."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from tensornet_attn.tasks import task_named
from tests.refusals import refusal

SPLITS = ("train", "validation", "test")


def idx(path: Path, count: int, height: int = 3, width: int = 4) -> np.ndarray:
    pixels = np.random.default_rng(count).integers(0, 256, (count, height, width)).astype(np.uint8)
    data = struct.pack(">4B3I", 0, 0, 8, 3, count, height, width) + pixels.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return pixels


def records(path: Path, count: int, side: int = 4) -> np.ndarray:
    made = np.random.default_rng(count).integers(0, 256, (count, 1 + 3 * side * side)).astype(np.uint8)
    path.write_bytes(made.tobytes())
    return made


def message(**options: object) -> str:
    return refusal(task_named, "image_generation", **options)


@pytest.mark.parametrize("names", [("train-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz"),
                                   ("train-images.idx3-ubyte.gz", "t10k-images.idx3-ubyte")])  # fmt: skip
def test_mnist_is_predicted_from_the_first_pixel_on(tmp_path: Path, names: tuple[str, str]) -> None:
    train, test = idx(tmp_path / names[0], 20), idx(tmp_path / names[1], 3)
    task = task_named("image_generation", path=str(tmp_path), data="mnist")
    assert [task.size(split) for split in SPLITS] == [18, 2, 3]
    assert (task.kind, task.length, task.vocabulary, task.causal) == ("language_model", 12, 257, True)
    for split, pixels in (("validation", train[18:]), ("test", test)):
        (batch,) = task.batches(split, 100)
        assert batch.targets.tolist() == pixels.reshape(len(pixels), -1).tolist()
        assert batch.tokens[:, 0].tolist() == [256] * len(pixels)
        assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
        assert batch.key_mask is None


def test_bits_per_dimension_are_over_every_pixel(tmp_path: Path) -> None:
    idx(tmp_path / "train-images-idx3-ubyte", 20)
    idx(tmp_path / "t10k-images-idx3-ubyte", 5)
    task = task_named("image_generation", path=str(tmp_path), data="mnist")
    (batch,) = task.batches("test", 5)
    score = task.score(torch.zeros(5, 12, 257, dtype=torch.float64), batch)
    assert score.parts["loss"][1] == 60
    assert score.means()["bits_per_dimension"] == pytest.approx(math.log2(257), rel=1e-14)


def test_cifar_is_red_green_and_blue_of_each_pixel_in_turn_or_grey(tmp_path: Path) -> None:
    for number in (1, 2):
        records(tmp_path / f"data_batch_{number}.bin", 10 * number)
    made = records(tmp_path / "test_batch.bin", 5)
    task = task_named("image_generation", path=str(tmp_path), data="cifar10", side=4)
    assert [task.size(split) for split in SPLITS] == [27, 3, 5]
    (batch,) = task.batches("test", 5)
    assert task.length == 48
    for row, record in zip(batch.targets.tolist(), made.tolist(), strict=True):
        red, green, blue = record[1:17], record[17:33], record[33:]
        assert row == [level for pixel in zip(red, green, blue, strict=True) for level in pixel]
    dark = task_named("image_generation", path=str(tmp_path), data="cifar10", side=4, grey=True)
    (batch,) = dark.batches("test", 5)
    arena = task_named("lra_image", path=str(tmp_path), side=4, classes=256)
    assert torch.equal(batch.targets, next(arena.batches("test", 5)).tokens)


def test_pictures_that_cannot_be_used(tmp_path: Path) -> None:
    def told(**options: object) -> str:
        return message(path=str(tmp_path), **({"data": "mnist"} | options)).replace(f"{tmp_path}/", "")

    needed = (
        " Task 'image_generation': path is, with data=mnist, the folder of MNIST's train-images-idx3-ubyte and "
        "t10k-images-idx3-ubyte, with or without gzip; with data=cifar10, the folder of data_batch_1.bin to "
        "data_batch_5.bin and test_batch.bin: CIFAR-10's binary version, unpacked."
    )
    assert told() == f"'{tmp_path}' has no file train-images[-.]idx3-ubyte*.{needed}"
    assert told(data="cifar10") == f"'{tmp_path}' has no file data_batch_*.bin.{needed}"
    assert told(data="svhn") == (
        "task 'image_generation', option 'data': input should be 'mnist' or 'cifar10', got 'svhn'."
    )
    train, test = tmp_path / "train-images-idx3-ubyte", tmp_path / "t10k-images-idx3-ubyte"
    idx(test, 2)
    for data in (b"", b"\0\0\x08\x03\0\0", b"\0\0\x08\x01" + bytes(20)):
        train.write_bytes(data)
        assert told() == (
            "'train-images-idx3-ubyte' is not an idx file of grey images: it does not begin with 00 00 08 03 and three "
            "sizes."
        )
    idx(train, 2)
    train.write_bytes(train.read_bytes() + b"x")
    assert told() == "'train-images-idx3-ubyte' has 25 pixels, but its header has 2 images of 3 x 4."
    idx(train, 20, 2)
    assert told() == f"'{tmp_path}' has training images of 2 x 4 pixels and test images of 3 x 4."
    train.unlink()
    packed = tmp_path / "train-images-idx3-ubyte.gz"
    packed.write_bytes(b"not packed")
    assert told() == ("'train-images-idx3-ubyte.gz' cannot be unpacked: Not a gzipped file (b'no').")
    idx(packed, 5)
    packed.write_bytes(packed.read_bytes()[:-9])
    assert told().startswith("'train-images-idx3-ubyte.gz' cannot be unpacked: ")
    idx(packed, 20)
    idx(test, 0)
    assert told() == "task 'image_generation': split 'test' has no samples; give more images."
