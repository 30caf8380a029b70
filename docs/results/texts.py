"""A text of a few million characters for char_lm, out of what a machine has; none of it is part of this repository.

python docs/results/texts.py stdlib -o stdlib.txt     the sources of Python's standard library
python docs/results/texts.py bible -o bible.txt       the King James Bible of Debian's bible-kjv and bible-kjv-text

The same Python, or package, gives the same text: standard error says which one it was, and the checksum of the text.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from tensornet_attn.files import write_whole

# Tests repeat themselves, and the others are not Python's own.
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
VERSES = "gen1:1-rev22:21"  # from the first to the last


def stdlib(most: int) -> tuple[str, str]:
    """(text, what it is): modules in ASCII, whole, as many as `most` characters hold.

    They stand in an order drawn by their names: the end of the text, which is not trained on, is like its beginning.
    """
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(modules(root), key=lambda name: sha256(name.encode()).digest())
    chosen, size = [], 0
    for name in names:
        data = (root / name).read_bytes().replace(b"\r\n", b"\n")
        if data.isascii() and size + len(data) <= most:
            chosen.append(data.decode())
            size += len(data)
    return "".join(chosen), f"{len(chosen)} of {len(names)} modules of Python {platform.python_version()}"


def modules(root: Path) -> Iterator[str]:
    for path in root.rglob("*.py"):
        name = path.relative_to(root)
        if not LEFT_OUT & set(name.parts):
            yield name.as_posix()


def bible(most: int) -> tuple[str, str]:
    """(text, what it is): a verse a line, without its number, from Genesis on. Exits where the program is missing."""
    try:
        done = subprocess.run(
            ["bible", "-f", VERSES], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        sys.exit("error: there is no program 'bible': on Debian, apt-get install bible-kjv bible-kjv-text.")
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: 'bible -f {VERSES}' failed: {error.stderr.strip()}")
    verses = [line.partition(" ")[2] for line in done.stdout.splitlines()]
    text = "".join(f"{verse}\n" for verse in verses)[:most]
    return text, f"{len(verses):,} verses of Debian's bible-kjv-text"


TEXTS = {"stdlib": stdlib, "bible": bible}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", choices=TEXTS)
    parser.add_argument("-o", "--output", required=True, type=Path, help="the file to write")
    parser.add_argument("--megabytes", type=float, default=5.0, help="millions of characters at most; 5")
    given = parser.parse_args()
    text, what = TEXTS[given.text](round(given.megabytes * 1e6))
    write_whole(given.output, text.encode())
    letters, checksum = len(set(text)), sha256(text.encode()).hexdigest()
    print(f"{given.output}: {what}; {len(text):,} characters, {letters} different; sha256 {checksum}", file=sys.stderr)


if __name__ == "__main__":
    main()
