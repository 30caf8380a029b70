"""Files nobody should write: each is answered within bounds, by problems alone; nothing of them is run."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import tensornet_attn as ta
from tensornet_attn import limits
from tensornet_attn.spec import library, read_text
from tests.bounded import bounded, printed

KIB = 1024
SIZE = limits.FILE_BYTES
MHSA = library.path_of("mhsa").read_text().partition("contains:")[0]
STEPS = MHSA.partition("  y: A")


def sections(text: str) -> str:
    return MHSA + text


def steps(text: str) -> str:
    return f"{STEPS[0]}{text}{STEPS[1]}{STEPS[2]}"


def weights(text: str) -> str:
    return MHSA.replace("diagram:", f"{text}diagram:", 1)


def legs(text: str) -> str:
    return MHSA.replace("inputs:", f"{text}inputs:", 1)


def checked(check: Callable[..., list[ta.Problem]], *arguments: object) -> list[ta.Problem]:
    """The problems that a check finds within its bounds: few, short, and fit to be printed."""
    problems = bounded(check, *arguments)
    for problem in problems:
        json.dumps(problem.as_dict())
        str(problem).encode()  # no lone surrogate, which a terminal could not show
        assert len(str(problem)) < 2 * KIB
    assert len(problems) <= limits.PROBLEMS + 1
    return problems


def problems_of_text(text: str | bytes) -> list[ta.Problem]:
    return ta.graph.problems_of(read_text(text, "t"))


def problems_of_dict(title: str) -> list[ta.Problem]:
    return ta.check(BUILT[title][0])


def codes_of(text: str | bytes) -> list[str]:
    return [problem.code for problem in checked(problems_of_text, text)]


def lines(count: int, line: str) -> str:
    return "".join(line.replace("#", str(i)) for i in range(count))


def filled(text: str) -> str:
    """A text repeated to the largest size of a file."""
    return (text * (SIZE // len(text.encode())))[:SIZE]


TEXTS = {  # the text, and a code of the answer
    "nothing": ("", "empty"),
    "too large": (filled("a: b\n") + "a: b\n", "too-large"),
    "all values": (filled("- a\n"), "too-large"),
    "10,000 keys": (lines(10_001, "k#: v\n"), "too-large"),
    "unknown keys": (lines(9_000, "kk#: 3\n"), "unknown-key"),
    "one key many times": (sections(lines(9_000, "legs: 3\n")), "duplicate-key"),
    "9,000 settings": (sections("settings:\n" + lines(9_000, "  s#: s1#\n")), "too-large"),
    "settings in use": (sections("settings:\n" + lines(999, "  s#: s1#\n")), "unknown-leg"),
    "settings in a row": (sections("settings:\n" + "".join(f"  s{i}: s{i + 1}\n" for i in range(999))), "unknown-leg"),
    "settings in a circle": (
        sections("settings:\n" + "".join(f"  s{i}: s{(i + 1) % 999}\n" for i in range(999))),
        "circular-size",
    ),
    "weights without use": (weights(lines(9_000, "  W#: f\n")), "too-large"),
    "weights on legs that are none": (weights(lines(980, "  W#: zz# f\n")), "unknown-leg"),
    "weights on misspelt legs": (weights(lines(980, "  W#: ff f\n")), "unknown-leg"),
    "9,000 steps": (steps(lines(9_000, "  T#: xyzz#\n")), "too-large"),
    "steps of names that are none": (steps(lines(980, "  T#: xyzz#\n")), "unknown-name"),
    "steps of misspelt names": (steps(lines(980, "  T#: Wqq[f h d] -> f h d\n")), "unknown-name"),
    "steps in a row": (steps("  T0: Q\n" + "".join(f"  T{i + 1}: T{i}\n" for i in range(980))), "unused"),
    "boxes that are none": (steps(lines(3_000, "  T#: {softmx: m, of: Q}\n")), "unknown-box"),
    "boxes without content": (steps(lines(4_000, "  T#: {softmax: m}\n")), "missing-key"),
    "legs": (legs(lines(300, "  l#: 3\n")), "too-large"),
    "9,000 legs": (legs(lines(9_000, "  l#: 3\n")), "too-large"),
    "masks": (MHSA.replace("    scale: d", f"    mask: [{'causal, ' * 9_000}]\n    scale: d"), None),
    "a product of everything": (MHSA.replace("y: A[", "y: " + "A[h n m] " * 400 + "A["), "too-large"),
    "a long product": (MHSA.replace("y: A[", "y: " + "A[h n m] " * 20_000 + "A["), "too-large"),
    "a long sum": (MHSA.replace("y: A[", "y: " + "Q[n h d] + " * 360 + "A["), "too-large"),
    "a tensor with many legs": (MHSA.replace("Wq: f h d", "Wq: " + "f " * 1_900), "too-large"),
    "names of 100,000 characters": (MHSA.replace("mhsa", "m" * 100_000), "name"),
    "keys of 100,000 characters": (sections("? " + "k" * 100_000 + "\n: 3\n"), "unknown-key"),
    "weights of 100,000 characters": (weights("  ? " + "k" * 100_000 + "\n  : f\n"), "name"),
    "an expression of 100,000 characters": (MHSA.replace("x[n f] Wq", "x" * 100_000), "too-large"),
    "an integer of 100,000 digits": (MHSA.replace("f: 512", "f: " + "9" * 100_000), "too-large"),
    "an integer of 5,000 digits": (MHSA.replace("f: 512", "f: " + "9" * 5_000), "too-large"),
    "an integer of 3,000 digits": (MHSA.replace("f: 512", "f: " + "9" * 3_000), "number"),
    "a version of 40 digits": (MHSA.replace("tensornet: 1", "tensornet: " + "1" * 40), "version"),
    "not a number": (MHSA.replace("f: 512", "f: .nan"), "syntax"),
    "an infinite number": (MHSA.replace("scale: d ** -0.5", "scale: 1e400"), "wrong-type"),
    "billion laughs": ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", "alias"),
    "an alias of itself": ("a: &a [*a]\n", "alias"),
    "a merge key": ("<<: {a: b}\n", "alias"),
    "a merge of aliases": ("a: &a {b: c}\nd:\n  <<: *a\n", "alias"),
    "code": ("!!python/object/apply:os.system ['touch /tmp/oops']\n", "tag"),
    "code in a value": ("a: !!python/name:os.system\n", "tag"),
    "code in a key": ("!!python/name:os.system : a\n", "tag"),
    "nested flow": ("[" * SIZE, "too-deep"),
    "nested flow mappings": ("{a: " * 60_000, "too-deep"),
    "nested mapping keys": ("{" * SIZE, "key"),
    "nested blocks": ("".join(" " * i + "a:\n" for i in range(700)), "too-deep"),
    "nested sequences": ("- " * 100_000, "too-deep"),
    "nested questions": ("? " * 100_000, "key"),
    "nested boxes": (steps("  T: " + "{map: relu, of: " * 40 + "Q" + "}" * 40 + "\n"), "too-deep"),
    "NUL": ("tensornet: 1\nname: \0\n", "yaml"),
    "NULs": ("\0" * SIZE, "yaml"),
    "binary": (bytes(range(256)) * 100, "not-utf-8"),
    "an executable": (b"\x7fELF\x02\x01\x01" + b"\0" * 100, "yaml"),
    "UTF-16": (MHSA.encode("utf-16"), "not-utf-8"),
    "UTF-16 without its mark": (MHSA.encode("utf-16-le"), "yaml"),
    "UTF-32": (MHSA.encode("utf-32"), "not-utf-8"),
    "Latin-1": (MHSA.replace("about: ", "about: é").encode("latin-1"), "not-utf-8"),
    "a lone surrogate from Python": (MHSA.replace("about: ", "about: \udcff"), "not-utf-8"),
    "an escaped surrogate": (MHSA.replace("name: mhsa", 'name: "\\udcff"'), "yaml"),
    "an escape that is no character": (MHSA.replace("name: mhsa", 'name: "\\Uffffffff"'), "yaml"),
    "a byte order mark": ("\ufeff" + MHSA, None),
    "CRLF": (MHSA.replace("\n", "\r\n"), None),
    "CR": (MHSA.replace("\n", "\r"), None),
    "tabs": (MHSA.replace("  ", "\t"), "yaml"),
    "blank lines": (filled("\n"), "empty"),
    "blanks": (" " * SIZE, "empty"),
    "a comment": ("#" * SIZE, "empty"),
    "comments": (filled("# \n"), "empty"),
    "exclamation marks": ("!" * SIZE, "tag"),
    "quotes": (filled("'"), "not-a-mapping"),
    "double quotes": (filled('"'), "yaml"),
    "quoted words": (filled('"" '), "yaml"),
    "escapes": ('a: "' + "\\x41" * 60_000 + '"', "unknown-key"),
    "lines in quotes": ('a: "' + "b\n " * 80_000 + '"', "unknown-key"),
    "a literal": ("a: |\n" + " b\n" * 80_000, "unknown-key"),
    "folds": ("a: >\n" + "\n" * 200_000 + " b", "unknown-key"),
    "colons": (filled(": "), "too-deep"),
    "directives": (filled("%YAML 1.1\n"), "yaml"),
    "documents": (filled("--- a\n"), "documents"),
    "braces in a row": ("{" + "a: b, " * 40_000 + "}", "duplicate-key"),
    "open parentheses": (sections("settings: {" + "a(, " * 4_000 + "}"), "duplicate-key"),
    "pieces": (sections("settings: {" + lines(4_000, "a#: f(, ") + "}"), "split-text"),
    "line separators": (MHSA.replace("about: ", "about: \u2028\x85"), None),
    "right to left": (MHSA.replace("name: mhsa", "name: '\u202emhsa'"), "name"),
}


@pytest.mark.parametrize("title", TEXTS)
def test_a_hostile_text(title: str) -> None:
    text, code = TEXTS[title]
    codes = codes_of(text)
    assert code in codes if code else codes == []


@pytest.mark.parametrize("seed", range(60))
def test_random_bytes(seed: int) -> None:
    draw = random.Random(seed)
    codes_of(draw.randbytes(draw.randint(1, 4_000)))
    alphabet = "aAxfhmn0189 \n\t:-,[]{}()*&!|>'\"%@`#?+/.~_<=→é\\"
    codes_of("".join(draw.choice(alphabet) for _ in range(draw.randint(1, 4_000))))


@pytest.mark.parametrize("name", library.names())
def test_random_mutations_of_shipped_designs(name: str) -> None:
    draw = random.Random(name)
    original = library.path_of(name).read_text()
    pieces = [
        "[",
        "]",
        "{",
        "}",
        ":",
        "- ",
        "\n",
        "  ",
        ",",
        "*",
        "&",
        "null",
        "head",
        "query",
        "-> ",
        "(",
        "9**9",
        "m",
        '"',
    ]
    for _ in range(25):
        text = original
        for _ in range(draw.randint(1, 6)):
            at = draw.randrange(len(text))
            gone = draw.choice([0, 0, 1, 2, 20])
            text = text[:at] + draw.choice([*pieces, text[at : at + 9][::-1]]) + text[at + gone :]
        codes_of(text)


def nested(depth: int) -> dict[str, object]:
    data: dict[str, object] = {"of": "x"}
    for _ in range(depth):
        data = {"map": "relu", "of": data}
    return data


def circle() -> dict[str, object]:
    data: dict[str, object] = {"tensornet": 1, "name": "c"}
    data["legs"] = {"n": data}
    return data


BUILT = {
    "nothing": ({}, "empty"),
    "a circle": (circle(), "too-deep"),
    "deep nesting": ({"tensornet": 1, "diagram": nested(5_000)}, "too-deep"),
    "many values": ({"legs": dict.fromkeys(map(str, range(100_000)), 3)}, "too-large"),
    "a text of 10 MB": ({"name": "a" * 10_000_000}, "too-large"),
    "keys that are no text": ({1: 2, None: 3, ("a",): 4}, "key"),
    "keys that are numbers": ({"legs": {1: 2}, "tensornet": 1}, "missing-key"),
    "a number of a million digits": (ta.load("mhsa").as_dict() | {"legs": {"f": 10**1_000_000}}, "wrong-type"),
    "a name that is a number": ({"name": 10**1_000_000}, "missing-key"),
    "not a number": (ta.load("mhsa").as_dict() | {"settings": {"k": float("nan")}}, "wrong-type"),
    "infinity": (ta.load("mhsa").as_dict() | {"settings": {"k": float("inf")}}, "wrong-type"),
    "bytes": ({"name": b"mhsa"}, "missing-key"),
    "objects": (ta.load("mhsa").as_dict() | {"settings": {"k": object()}, "weights": {"W": object}}, "wrong-type"),
    "lone surrogates": (ta.load("mhsa").as_dict() | {"about": "\udcff", "\udcff": 1}, "unknown-key"),
    "a lone surrogate as a name": (ta.load("mhsa").as_dict() | {"name": "\udcff"}, "wrong-type"),
}


@pytest.mark.parametrize("title", BUILT)
def test_a_hostile_dict(title: str) -> None:
    data, code = BUILT[title]
    assert code in [problem.code for problem in checked(problems_of_dict, title)]
    with pytest.raises(ta.DesignError):
        ta.load(data)


@pytest.mark.parametrize("title", [title for title in BUILT if title not in ("nothing", "keys that are no text")])
def test_a_hostile_design_in_python(title: str) -> None:
    try:
        problems = ta.check(ta.Design(**BUILT[title][0]))
    except ta.DesignError as error:
        problems = list(error.problems)
    assert problems
    assert all(str(problem).encode() for problem in problems)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "closed.yaml").write_text("a")
    (tmp_path / "closed.yaml").chmod(0)
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "circle.yaml").symlink_to(tmp_path / "circle.yaml")
    answers = {
        tmp_path: "Is a directory",
        tmp_path / "missing.yaml": "No such file or directory",
        tmp_path / "pipe.yaml": "it is not a regular file",
        tmp_path / "circle.yaml": "Too many levels of symbolic links",
        "/dev/zero": "it is not a regular file",
        "a" * 5_000 + ".yaml": "File name too long",
        "a\0.yaml": "its path has a character that no path can have",
        "a\ud800.yaml": "its path has a character that no path can have",
    }
    if os.geteuid():
        answers[tmp_path / "closed.yaml"] = "Permission denied"
    for source, reason in answers.items():
        (problem,) = checked(ta.check, source)
        name = str(source)[:200].translate({0: "?", 0xD800: "?"}) if len(str(source)) <= 200 else "a" * 197 + "..."
        message = f"{name}: unreadable: this file cannot be read: {reason}."
        assert str(problem) == f"{message}\n  hint: give the path of a YAML file."


def test_names_that_are_no_designs() -> None:
    for name in ("nope", "a" * 5_000, "*", "mh*"):
        assert [problem.code for problem in checked(ta.check, name)] == ["unknown-design"]
    for name in ("", ".", "..", "/", "~", "\udcff", "$HOME", "mhsa\0"):
        assert [problem.code for problem in checked(ta.check, name)] == ["unreadable"]


def test_nothing_is_shown_of_a_file_that_is_no_design(tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("password: hunter2\nlegs: hunter2\n")
    (tmp_path / "broken.yaml").write_text("hunter2: [\n")
    for path in ("./secret.yaml", "./broken.yaml", "../../../../../../../../etc/passwd", "/etc/passwd", "/dev/zero"):
        (tmp_path / "a.yaml").write_text(f"tensornet: 1\nname: a\nextends: {path}\n")
        (problem,) = ta.check(tmp_path / "a.yaml")
        assert problem.code == "unknown-design"
        assert "hunter2" not in str(problem)
        assert "root:" not in str(problem)


def test_a_chain_of_large_parents(tmp_path: Path) -> None:
    big = "".join(f"  s{i}: 1\n" for i in range(4_000))
    (tmp_path / "d0.yaml").write_text(MHSA + f"settings:\n{big}")
    for i in range(1, 15):
        text = f"tensornet: 1\nname: d{i}\nextends: ./d{i - 1}.yaml\nsettings:\n{big}"
        (tmp_path / f"d{i}.yaml").write_text(text)
    problems = checked(ta.check, tmp_path / "d14.yaml")
    assert [problem.code for problem in problems] == ["unknown-design"]
    assert "has more than 20000 keys and values, including the designs it extends" in problems[0].message


def test_a_chain_of_parents_with_long_comments(tmp_path: Path) -> None:
    (tmp_path / "d0.yaml").write_text(MHSA)
    for i in range(1, 8):
        text = f"tensornet: 1\nname: d{i}\nextends: ./d{i - 1}.yaml\n# {'x' * 40 * KIB}\n"
        (tmp_path / f"d{i}.yaml").write_text(text)
    problems = checked(ta.check, tmp_path / "d7.yaml")
    assert [problem.code for problem in problems] == ["unknown-design"]
    assert "larger than 256 KiB, including the designs it extends" in problems[0].message
    assert ta.check(tmp_path / "d6.yaml") == []


def test_a_chain_that_is_too_long(tmp_path: Path) -> None:
    (tmp_path / "d0.yaml").write_text(MHSA)
    for i in range(1, 40):
        (tmp_path / f"d{i}.yaml").write_text(f"tensornet: 1\nname: d{i}\nextends: ./d{i - 1}.yaml\n")
    assert [problem.code for problem in checked(ta.check, tmp_path / "d39.yaml")] == ["too-deep"]
    assert ta.check(tmp_path / "d9.yaml") == []


def test_a_path_with_strange_characters(tmp_path: Path) -> None:
    path = tmp_path / "a\nb\udcff.yaml"
    path.write_text("tensornet: 1\n")
    problems = checked(ta.check, path)
    assert problems[0].file.endswith("a?b?.yaml")
    assert problems[0].line == 1


def test_the_tail_of_a_very_long_list_is_cut() -> None:
    problems = checked(ta.check, MHSA + lines(5_000, "kk#: 1\n"))
    assert len(problems) == limits.PROBLEMS + 1
    assert str(problems[-1]).endswith("too-many: 4900 more problems.\n  hint: fix the first ones.")
    assert [problem.line for problem in problems] == sorted(problem.line or 0 for problem in problems)


MEASURED = """
import sys
import tensornet_attn as ta
problems = ta.check(sys.argv[1])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) / 1024, "torch" in sys.modules, problems[0].code)
"""


def test_memory_of_a_whole_process(tmp_path: Path) -> None:
    for title in (
        "10,000 keys",
        "settings in a circle",
        "exclamation marks",
        "steps of names that are none",
        "9,000 steps",
    ):
        text = TEXTS[title][0]
        path = tmp_path / "t.yaml"
        path.write_text(str(text))
        mebibytes, torch, _ = printed(MEASURED, path).split()
        assert float(mebibytes) < 300
        assert torch == "False"


def test_a_file_of_a_gigabyte(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    with open(path, "wb") as file:
        file.truncate(2**30)  # a hole: it takes no space
    mebibytes, torch, code = printed(MEASURED, path).split()
    assert (torch, code) == ("False", "too-large")
    assert float(mebibytes) < 300  # so it was not read
