"""How wide texts are: the widths of Helvetica, with room for the fonts that stand in for it."""

from __future__ import annotations

FONT = "Helvetica"
ROOM = 1.12  # DejaVu Sans, which some machines show instead, is wider
LINE = 1.2  # from one line of text to the next, by its size
# Thousandths of the size, from the font's metrics file; texts in pictures are mostly of these characters.
_WIDTHS = {
    191: "'",
    222: "ijl",
    260: "|",
    278: " !,./:;I[]\\ft",
    333: "()-`r",
    334: "{}",
    355: '"',
    389: "*",
    469: "^",
    500: "Jcksvxyz",
    584: "+<=>~\N{MINUS SIGN}",
    611: "FTZ",
    667: "&ABEKPSVXY",
    722: "CDHNRUw",
    778: "GOQ",
    833: "Mm",
    889: "%",
    944: "W",
    1015: "@",
}
_WIDTH = {character: width for width, characters in _WIDTHS.items() for character in characters}
_DIGIT = 556  # as digits and the other small letters
_OTHER = 1000  # of another alphabet


def text_width(text: str, size: float) -> float:
    """Points that one line of text takes, at a size in points."""
    return sum(_WIDTH.get(c, _DIGIT if c.isascii() else _OTHER) for c in text) * size * ROOM / 1000
