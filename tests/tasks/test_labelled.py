"""Loaders of labelled data: a CSV file, and the files of the Long Range Arena."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tensornet_attn.tasks import Task, task_named
from tests.refusals import refusal

SPLITS = ("train", "validation", "test")


def all_texts(task: Task) -> dict[str, list[tuple[str, int]]]:
    found = {}
    for split in SPLITS:
        batch = next(task.batches(split, 10_000))
        texts = [task.alphabet.decode(row) for row in batch.tokens.tolist()]
        found[split] = list(zip(texts, batch.targets.tolist(), strict=True))
    return found


def message(name: str, **options: object) -> str:
    return refusal(task_named, name, **options)


def test_a_csv_file_is_split_by_what_its_texts_say(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    texts = [f'é "{number % 60}", a' for number in range(120)]  # each twice
    quoted = [text.replace('"', '""') for text in texts]
    lines = [f'{10 if number % 2 else 9},x,"{text}"' for number, text in enumerate(quoted)]
    path.write_text("\n".join(["kind,other,words", *lines]), encoding="utf-8-sig")
    task = task_named("text_classification", path=str(path), text="words", label="kind", length=12)
    found = all_texts(task)
    assert task.classes == 2
    assert task.source.classes == ("9", "10")
    assert sum(len(pairs) for pairs in found.values()) == 120
    assert sorted(text for pairs in found.values() for text, _ in pairs) == sorted(texts)
    assert {text for text, _ in found["train"]} & {text for text, _ in found["validation"] + found["test"]} == set()
    assert len(found["validation"]) % 2 == len(found["test"]) % 2 == 0
    for text, label in found["train"]:
        assert label == texts.index(text) % 2
    batch = task.samples("test", 0, 1)
    assert batch.key_mask is not None
    assert batch.key_mask.sum() == len(all_texts(task)["test"][0][0].encode())
    assert task_named("text_classification", path=str(path), text="words", label="kind", length=3).samples(
        "train", 0, 1
    ).tokens.tolist()[0][:2] == [196, 170]


def test_epochs_of_a_file_are_in_orders_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("text,label\n" + "".join(f"t{number},a\n" for number in range(64)))
    task = task_named("text_classification", path=str(path), length=4)
    size = task.size("train")
    assert size is not None
    epochs = [task.samples("train", size * epoch, size).tokens.tolist() for epoch in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]
    other = task_named("text_classification", seed=1, path=str(path), length=4)
    assert other.samples("train", 0, size).tokens.tolist() != epochs[0]
    assert torch.equal(other.samples("test", 0, 3).tokens, task.samples("test", 0, 3).tokens)


def test_csv_files_of_their_own_are_the_splits(tmp_path: Path) -> None:
    for name in SPLITS:
        (tmp_path / f"{name}.tsv").write_text(f"text\tlabel\n{name}\tyes\n{name}!\tno\n")
    paths = {f"{split}_path": str(tmp_path / f"{split}.tsv") for split in SPLITS[1:]}
    task = task_named("text_classification", path=str(tmp_path / "train.tsv"), delimiter="\t", length=20, **paths)
    found = all_texts(task)
    assert {split: {text for text, _ in pairs} for split, pairs in found.items()} == {s: {s, s + "!"} for s in SPLITS}
    assert found["test"] == [("test", 1), ("test!", 0)]


def test_csv_files_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"

    def told(text: str | bytes, **options: object) -> str:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return message("text_classification", path=str(path), **options).replace(str(tmp_path) + "/", "")

    assert told("", label="kind") == "'data.csv' has no column 'text': none is declared."
    assert told("texts,label\n") == "'data.csv' has no column 'text': did you mean 'texts'?"
    assert told("text,label\na\n") == "'data.csv', line 2: 1 columns, fewer than the header."
    assert told("text,label\na,\n") == "'data.csv', line 2: column 'label' is empty."
    assert told('text,label\n"a\n\nb",x\n,x\n') == "'data.csv', line 5: column 'text' is empty."
    assert told(b"text,label\n\xe9,1\n") == "'data.csv': byte 11 is not UTF-8; save it as UTF-8 text."
    assert told("text,label\n") == (
        "task 'text_classification': split 'train' has no samples; give more texts, or set validation_path= and "
        "test_path=."
    )
    assert told("text,label\n", test_path="x") == (
        "task 'text_classification': give both validation_path and test_path, or neither."
    )
    assert message("text_classification", path="no/file") == (
        "'no/file' cannot be read: No such file or directory. Task 'text_classification': path, validation_path and "
        "test_path are CSV files with a header; text= and label= are the names of columns."
    )


def test_a_long_field_is_read(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("text,label\n" + "".join(f"{str(number) * 200_000},a\n" for number in range(10, 40)))
    assert task_named("text_classification", path=str(path)).classes == 1


LISTOPS = "Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n( ( ( ( [SM ( ( ( [MED 4 ) 7 ) ] ) ) 8 ) 1 ) ] )\t4\n"


def test_the_arenas_listops_files(tmp_path: Path) -> None:
    for name in ("train", "val", "test"):
        (tmp_path / f"basic_{name}.tsv").write_text(LISTOPS.replace("\n", "\r\n"))
    task = task_named("lra_listops", path=str(tmp_path), length=9)
    batch = task.samples("test", 0, 2)
    assert [task.alphabet.decode(row) for row in batch.tokens.tolist()] == [
        "[MAX 2 9 ]" + " padding" * 5,
        "[SM [MED 4 7 ] 8 1 ]" + " padding",
    ]
    assert (batch.targets.tolist(), task.classes, task.vocabulary) == ([9, 4], 10, 16)
    (tmp_path / "basic_val.tsv").write_text("Source\tTarget\n[MIX 2 ]\t2\n")
    path = tmp_path / "basic_val.tsv"
    assert message("lra_listops", path=str(tmp_path)) == (
        f"'{path}', line 2: '[MIX' is not in the vocabulary: did you mean '[MIN'?"
    )
    path.write_text("Source\tTarget\n[MIN 2 ]\t12\n")
    assert message("lra_listops", path=str(tmp_path)) == (f"'{path}', line 2: give a list of operations and a digit.")
    path.write_text("Source\tTarget\n")
    assert message("lra_listops", path=str(tmp_path)) == f"'{path}' has no lines below its header."
    path.unlink()
    needed = (
        "Task 'lra_listops': path is the folder of NAME_train.tsv, NAME_val.tsv and NAME_test.tsv: listops-1000 of the "
        "arena's lra_release."
    )
    assert message("lra_listops", path=str(tmp_path)) == f"'{tmp_path}' has no file *_val.tsv. {needed}"
    (tmp_path / "other_train.tsv").write_text("")
    assert message("lra_listops", path=str(tmp_path)) == (
        f"'{tmp_path}' has 2 files *_train.tsv (basic_train.tsv, other_train.tsv); leave exactly one."
    )
    assert message("lra_listops", path=str(path)) == (f"'{path}' is not a folder with files *_train.tsv. {needed}")


def reviews(folder: Path, count: int = 30) -> None:
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            (folder / split / label).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                (folder / split / label / f"{number}_1.txt").write_text(f"{split} {label} {number}")


def test_the_arenas_reviews(tmp_path: Path) -> None:
    reviews(tmp_path)
    task = task_named("lra_text", path=str(tmp_path), length=16)
    found = all_texts(task)
    assert len(found["train"]) + len(found["validation"]) == len(found["test"]) == 60
    assert len(found["validation"]) in range(2, 15)
    for split, pairs in found.items():
        for text, label in pairs:
            assert text.split()[:2] == ["test" if split == "test" else "train", ("neg", "pos")[label]]
    assert (task.classes, task.vocabulary, task.kind) == (2, 257, "classification")
    (tmp_path / "test" / "neg" / "7_1.txt").write_text("")
    assert (
        message("lra_text", path=str(tmp_path)) == f"'{tmp_path / 'test' / 'neg' / '7_1.txt'}' has no text; remove it."
    )
    for path in (tmp_path / "test" / "neg").iterdir():
        path.unlink()
    assert message("lra_text", path=str(tmp_path)) == (
        f"'{tmp_path / 'test' / 'neg'}' has no file *.txt. Task 'lra_text': path is the folder of train/pos, "
        "train/neg, test/pos and test/neg (aclImdb, the IMDb reviews, unpacked), or the folder of NAME_train.tsv, "
        "NAME_val.tsv and NAME_test.tsv."
    )


def test_the_arenas_texts_as_tables(tmp_path: Path) -> None:
    for name in ("train", "val", "test"):
        (tmp_path / f"agnews_{name}.tsv").write_text(f"Source\tTarget\n{name} a\t3\n{name} b\t11\n")
    found = all_texts(task_named("lra_text", path=str(tmp_path), length=16))
    assert found["validation"] == [("val a", 0), ("val b", 1)]
    (tmp_path / "agnews_test.tsv").write_text("Source\tTarget\n\t3\n")
    assert (
        message("lra_text", path=str(tmp_path)) == f"'{tmp_path / 'agnews_test.tsv'}', line 2 has no text; remove it."
    )


def test_the_arenas_retrieval_pairs(tmp_path: Path) -> None:
    for name in ("train", "eval", "test"):
        (tmp_path / f"new_aan_pairs.{name}.tsv").write_text(f'1.0\tA\tB\tfirst "{name}\tsecond\n0\tA\tC\tx\ty\n')
    task = task_named("lra_retrieval", path=str(tmp_path), length=41)
    batch = task.samples("validation", 0, 2)
    assert batch.targets.tolist() == [1, 0]
    row = batch.tokens[0].tolist()
    assert task.alphabet.decode(row[: row.index(257)]) == 'first "eval'
    assert task.alphabet.decode(row[row.index(257) :]) == "second"
    assert task.vocabulary == 258
    short = task_named("lra_retrieval", path=str(tmp_path), length=7).samples("test", 0, 1).tokens.tolist()
    assert short == [[*(byte + 1 for byte in b"fir"), 257, *(byte + 1 for byte in b"sec")]]
    path = tmp_path / "new_aan_pairs.eval.tsv"
    path.write_text("1\tA\tB\tonly one\n")
    assert message("lra_retrieval", path=str(tmp_path)) == (
        f"'{path}', line 1: give label (0 or 1), id, id, text and text, separated by tabs."
    )


def pictures(folder: Path, counts: dict[str, int], side: int = 4) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    found = {}
    for name, count in counts.items():
        records = random.integers(0, 256, (count, 1 + 3 * side * side)).astype(np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
        found[name] = records
    return found


def test_the_arenas_pictures(tmp_path: Path) -> None:
    made = pictures(tmp_path, {"data_batch_1.bin": 20, "data_batch_2.bin": 20, "test_batch.bin": 5})
    task = task_named("lra_image", path=str(tmp_path), side=4)
    assert [task.size(split) for split in SPLITS] == [36, 4, 5]
    assert (task.length, task.vocabulary, task.classes) == (16, 256, 10)
    batch = task.samples("validation", 0, 4)
    last = made["data_batch_2.bin"][-4:]
    assert batch.targets.tolist() == last[:, 0].tolist()
    colours = last[:, 1:].reshape(4, 3, 16) / 255.0
    grey = np.floor(np.tensordot(colours, [0.2989, 0.587, 0.114], (1, 0)) * 255.5)
    assert batch.tokens.tolist() == grey.astype(int).tolist()
    assert batch.key_mask is None
    path = tmp_path / "test_batch.bin"
    assert message("lra_image", path=str(tmp_path)) == (
        f"'{tmp_path / 'data_batch_1.bin'}' has 980 bytes, not a multiple of 3,073, an image of side 32."
    )
    path.write_bytes(bytes([10]) + bytes(48))
    assert message("lra_image", path=str(tmp_path), side=4) == f"'{path}' has class 10; the classes are 0 to 9."
    path.write_bytes(b"")
    assert message("lra_image", path=str(tmp_path), side=4) == (
        "task 'lra_image': split 'test' has no samples; give more images."
    )
    assert message("lra_image", path=str(tmp_path / "none")) == (
        f"'{tmp_path / 'none'}' is not a folder with files data_batch_*.bin. Task 'lra_image': path is the "
        "folder of data_batch_1.bin to data_batch_5.bin and test_batch.bin: CIFAR-10's binary version, unpacked."
    )


def paths(folder: Path, count: int = 20, side: int = 4) -> None:
    """Pathfinder's files: pictures whose first pixel is their number, odd ones with label 1; one file is empty."""
    base = folder / "curv_contour_length_14"
    (base / "metadata").mkdir(parents=True)
    for part in range(2):
        (base / "imgs" / str(part)).mkdir(parents=True)
        lines = []
        for number in range(part * count // 2, (part + 1) * count // 2):
            file = io.BytesIO()
            Image.fromarray(np.full((side, side), number, np.uint8), "L").save(file, "PNG")
            (base / "imgs" / str(part) / f"sample_{number}.png").write_bytes(file.getvalue())
            lines.append(f"imgs/{part} sample_{number}.png {number} {number % 2} 1.8 14 4\n")
        (base / "imgs" / str(part) / "empty.png").write_bytes(b"")
        lines.append(f"imgs/{part} empty.png 99 1 1.8\n")
        (base / "metadata" / f"{part + 9}.npy").write_text("".join(lines))


def test_the_arenas_pathfinder(tmp_path: Path, cache_home: Path) -> None:
    paths(tmp_path)
    seen: list[int] = []
    for again in range(2):
        task = task_named("lra_pathfinder", path=str(tmp_path), side=4, seed=again)
        assert [task.size(split) for split in SPLITS] == [16, 2, 2]
        for split in SPLITS:
            batch = next(task.batches(split, 100))
            assert (batch.tokens == batch.tokens[:, :1]).all()
            assert (batch.tokens[:, 0] % 2 == batch.targets).all()
            seen += batch.tokens[:, 0].tolist() if again == 0 else []
    assert sorted(seen) == list(range(20))
    assert len(list(cache_home.rglob("*.arrays"))) == 1


def test_pathfinder_files_that_cannot_be_used(tmp_path: Path) -> None:
    paths(tmp_path)
    base = tmp_path / "curv_contour_length_14"
    told = lambda **options: message("lra_pathfinder", path=str(tmp_path), **options).replace(f"{tmp_path}/", "")  # noqa: E731
    needed = (
        "Task 'lra_pathfinder': path is the folder of curv_baseline, curv_contour_length_9, curv_contour_length_14: "
        "pathfinder32 of the arena's lra_release, or the same with another side."
    )
    assert told(level="easy") == (f"'curv_baseline/metadata' is not a folder with files *.npy. {needed}")
    assert told() == (
        "'curv_contour_length_14/imgs/0/sample_0.png' has 4 x 4 pixels of 1 channels; give 32 x 32, grey."
    )
    (base / "imgs" / "0" / "sample_0.png").write_bytes(b"none")
    assert told(side=4) == "'curv_contour_length_14/imgs/0/sample_0.png' cannot be read: it is not a PNG file."
    (base / "imgs" / "0" / "sample_0.png").unlink()
    missing = "'curv_contour_length_14/imgs/0/sample_0.png' cannot be read: No such file or directory."
    assert told() == f"{missing} {needed}"
    table = base / "metadata" / "9.npy"
    for line, reason in (
        ("imgs/0 sample_1.png 1 7", "give folder, file, number and label (0 or 1)."),
        ("imgs/0 sample_1.png", "give folder, file, number and label (0 or 1)."),
        ("../.. secret.png 1 1", "'../../secret.png' is outside the folder."),
        ("/etc passwd 1 1", "'/etc/passwd' is outside the folder."),
    ):
        table.write_text(line + "\n")
        assert told() == f"'curv_contour_length_14/metadata/9.npy', line 1: {reason}"
    (base / "metadata" / "10.npy").unlink()
    table.write_text("imgs/0 sample_1.png 1 1\n")
    assert told(side=4) == "task 'lra_pathfinder': split 'train' has no samples; give more images."
