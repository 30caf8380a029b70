"""Splits expressions and arithmetic into tokens with their locations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tensornet_attn import limits

_TOKEN = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<symbol>->|\*\*|//|[-+*/()\[\],])|(?P<space>\s+)",
    re.ASCII,
)
_MEANT = {  # hints for characters of other notations
    "→": "write an arrow as '->'.",
    "^": "write a power as '**'.",
    "−": "write '-' for minus.",
    "×": "write '*' after a coefficient, and separate tensors with spaces.",
    "·": "write '*' after a coefficient, and separate tensors with spaces.",
    ">": "write an arrow as '->'.",
    "@": "write a matrix product as 'x[n f] W[f d] -> n d'.",
    "=": "write an arrow as '->', and a step as 'name: expression'.",
}

Span = tuple[int, int]


class Refusal(Exception):
    """An error in a text: a code, a message, a hint and a span (None: the whole text). Callers add the location."""

    def __init__(self, code: str, message: str, hint: str = "", span: Span | None = None):
        super().__init__(message)
        self.code, self.message, self.hint, self.span = code, message, hint, span


@dataclass(frozen=True)
class Token:
    kind: str  # number, name, symbol or end
    text: str
    start: int

    @property
    def span(self) -> Span:
        return self.start, self.start + max(1, len(self.text))


def tokenize(text: str, meant: Mapping[str, str]) -> list[Token]:
    """The tokens of one expression, followed by an `end` token. `meant` maps unexpected characters to hints."""
    if len(text) > limits.EXPRESSION_LENGTH:
        message = f"this text has more than {limits.EXPRESSION_LENGTH} characters."
        raise Refusal("too-large", message, "split it into several steps.", (0, 1))
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            shown = text[position] if text[position].isprintable() else f"U+{ord(text[position]):04X}"
            hint = {**_MEANT, **meant}.get(text[position], "use ASCII letters, digits and _ in names.")
            module = re.search(r"\b(math|torch|np|numpy)$", text[:position])
            if "einsum(" in text:
                hint = """write 'einsum("nf,fgd->ngd", x, Wq)' as 'x[n f] Wq[f g d] -> n g d'."""
            elif text[position] == "." and module:
                hint = f"write functions without a module: 'sqrt(d)', not '{module[1]}.sqrt(d)'."
            raise Refusal("syntax", f"unexpected character '{shown}'.", hint, (position, position + 1))
        if match.lastgroup != "space":
            tokens.append(Token(str(match.lastgroup), match.group(), position))
        position = match.end()
    return [*tokens, Token("end", "", len(text.rstrip()))]


class TokenStream:
    """A cursor over tokens for recursive-descent parsers.

    `hint` describes the whole text; errors without a more specific hint use it. `meant` adds hints for unexpected
    characters.
    """

    def __init__(self, text: str, hint: str, meant: Mapping[str, str] | None = None):
        self.text, self.hint = text, hint
        self.tokens = tokenize(text, meant or {})
        self.position = 0
        self.depth = 0
        self.operators = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.position]

    @property
    def after(self) -> Token:
        return self.tokens[min(self.position + 1, len(self.tokens) - 1)]

    @property
    def last(self) -> Token:
        return self.tokens[max(0, self.position - 1)]

    def at(self, *symbols: str) -> bool:
        return self.next.kind == "symbol" and self.next.text in symbols

    def take(self) -> Token:
        token = self.next
        self.position += token.kind != "end"
        return token

    def operator(self) -> Token:
        self.operators += 1
        if self.operators > limits.EXPRESSION_OPERATORS:
            hint = "move parts of it into settings or steps."
            message = f"this text has more than {limits.EXPRESSION_OPERATORS} operators."
            raise Refusal("too-large", message, hint, self.next.span)
        return self.take()

    def expect(self, symbol: str, what: str) -> Token:
        if not self.at(symbol):
            raise self.unexpected(what)
        return self.take()

    def unexpected(self, wanted: str, hint: str = "") -> Refusal:
        got = f"got '{self.next.text}'" if self.next.kind != "end" else "but the text ends here"
        return Refusal("syntax", f"expected {wanted}, {got}.", hint or self.hint, self.next.span)

    def descend(self) -> None:
        self.depth += 1
        if self.depth > limits.EXPRESSION_DEPTH:
            message = f"this is nested more than {limits.EXPRESSION_DEPTH} levels deep."
            raise Refusal("too-deep", message, "move parts of it into settings.", self.next.span)
