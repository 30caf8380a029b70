"""Parses expressions such as `-0.5 * K[m h d] K[m h d] + b[h] + 1 -> h m`, and calls, into trees with locations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from tensornet_attn import limits
from tensornet_attn.ir.arithmetic import ONE, Arith, Binary, Negative, literal, parse_arguments, parse_sum
from tensornet_attn.ir.steps import LOGIC
from tensornet_attn.ir.tokens import Refusal, Span, TokenStream

EXPRESSION = "e.g. 'x[n f] W[f d] -> n d'."
FACTOR = "give each tensor its legs, and write factors first, e.g. '(d ** -0.5) * S[h n m] D[h n m] -> h n m'."
SUM = "parentheses contain only numbers; write a sum of tensors as a step, 's: x[n f] + z[n f] -> n f', and use s[n f]."
LEGS = "separate the names of legs with spaces, e.g. 'n f'."
CALL = "write a name, with any arguments in parentheses, e.g. 'band(5)'."
CONCATENATION = "for a concatenation add a product for each part, e.g. 'x[n f] Wx[f g] + z[n e] Wz[e g] -> n g'."
JOINED = {  # hints for operators of other languages
    "&": "join masks with 'and'.",
    "|": "join masks with 'or'.",
    "!": "write 'not'.",
    "~": "write 'not'.",
}
MATRICES = ("eye", "ones", "kron", "row", "column")  # calls that may be arguments
IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class LegToken:
    """A leg's name and its location in a text; `parts` are the legs of a joined leg such as `(h d)`."""

    name: str
    span: Span = field(compare=False)
    parts: tuple[LegToken, ...] = ()

    @property
    def text(self) -> str:
        """The names of its parts."""
        return " ".join(leg.name for leg in self.parts)

    @property
    def each(self) -> tuple[LegToken, ...]:
        """The legs of a product that the token stands for."""
        return self.parts or (self,)


def each_of(legs: Iterable[LegToken] | None) -> tuple[LegToken, ...]:
    """The legs of a product that the tokens stand for; joined legs are split."""
    return tuple(token for leg in legs or () for token in leg.each)


@dataclass(frozen=True)
class UseText:
    """`K[m h d]`: a tensor with its legs renamed by position; `legs` is None if only the name is written."""

    name: str
    legs: tuple[LegToken, ...] | None
    span: Span = field(compare=False)


@dataclass(frozen=True)
class TermText:
    coefficient: Arith
    factors: tuple[UseText, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True)
class SumText:
    """A sum of products and the legs of its result."""

    terms: tuple[TermText, ...]
    legs: tuple[LegToken, ...]


@dataclass(frozen=True)
class CallText:
    """`band(w)`, `kron(eye(h), ones(d, d))`, `relu`: a name and its arguments, each a call or arithmetic."""

    name: str
    arguments: tuple[CallText | Arith, ...]
    span: Span = field(compare=False)


@lru_cache(maxsize=256)  # a design is built several times: checked, planned, priced
def parse_operand(text: str) -> SumText | UseText:
    """Parses the value of `of` or of a step: an expression with `->`, a use `Q[n g d]`, or a name."""
    if "->" in text:
        return parse_sum_text(text, joined=True)
    stream = TokenStream(text, EXPRESSION)
    if stream.next.kind == "name":
        use = _use(stream, need_legs=False, joined=True)
        if stream.next.kind == "end":
            return use
    hint = FACTOR if "*" in text else EXPRESSION
    raise Refusal("no-result", "this expression has no '->' with the legs of its result.", hint)


def parse_sum_text(text: str, joined: bool = False) -> SumText:
    """Parses a sum of products; `joined` allows joined legs, as in `x[n (h d)]`."""
    stream = TokenStream(text, EXPRESSION)
    terms = [_term(stream, first=True, joined=joined)]
    while stream.at("+", "-"):
        if len(terms) == limits.TERMS:
            raise Refusal(
                "too-large",
                f"this sum has more than {limits.TERMS} terms.",
                "split it into several steps.",
                stream.next.span,
            )
        terms.append(_term(stream, first=False, joined=joined))
    stream.expect("->", "a tensor, '+', '-' or '->'")
    legs = _legs(stream, closing="end", joined=joined)
    return SumText(tuple(terms), legs)


def parse_legs(text: str) -> tuple[LegToken, ...]:
    """Parses the legs of a declaration: names separated by spaces."""
    return _legs(TokenStream(text, LEGS), closing="end")


def parse_call(text: str) -> CallText:
    """Parses a name with arguments, such as a mask, a map or an initialiser."""
    stream = TokenStream(text, CALL)
    call = _call(stream)
    if stream.next.kind != "end":
        raise stream.unexpected("nothing more")
    return call


def parse_mask(text: str) -> CallText:
    """Parses a formula of masks, `causal and not (band(5) or prefix(2))`; its operators become calls too."""
    stream = TokenStream(text, CALL, JOINED)
    mask = _joined(stream, "or")
    if stream.next.kind != "end":
        raise stream.unexpected("'and', 'or' or nothing more")
    return mask


def _joined(stream: TokenStream, word: str) -> CallText:
    """Parses parts joined by `and` or `or`; `and` binds tighter."""
    masks = [_joined(stream, "and") if word == "or" else _part(stream)]
    while stream.next.text == word:
        stream.operator()
        masks.append(_joined(stream, "and") if word == "or" else _part(stream))
    span = masks[0].span[0], stream.last.span[1]
    return masks[0] if len(masks) == 1 else CallText(word, tuple(masks), span)


def _part(stream: TokenStream) -> CallText:
    """Parses a mask, a negated mask, or a formula in parentheses."""
    start = stream.next.start
    if stream.next.text not in ("not", "(") and stream.next.text not in LOGIC:
        return _call(stream)
    stream.descend()
    if stream.at("("):
        stream.take()
        mask = _joined(stream, "or")
        stream.expect(")", "')', 'and' or 'or'")
    elif stream.next.text == "not":
        stream.operator()
        negated = _part(stream)
        mask = CallText("not", (negated,), (start, stream.last.span[1]))
    else:
        raise stream.unexpected("a mask")
    stream.depth -= 1
    return mask


def _term(stream: TokenStream, first: bool, joined: bool) -> TermText:
    start = stream.next.start
    negative = False
    if stream.at("+", "-") and (not first or stream.at("-", "+")):
        negative = stream.take().text == "-"
        if stream.at("+", "-"):
            raise stream.unexpected("a tensor such as x[n f], a number or '('", "write one sign for each term.")
    coefficient = _coefficient(stream)
    factors: list[UseText] = []
    if coefficient is None or stream.at("*"):
        if coefficient is not None:
            stream.take()
        while stream.next.kind == "name":
            factors.append(_use(stream, need_legs=True, joined=joined))
            if len(factors) > limits.FACTORS:
                message = f"this product has more than {limits.FACTORS} tensors."
                raise Refusal("too-large", message, "split it into several steps.", factors[-1].span)
        if not factors:
            raise stream.unexpected("a tensor such as x[n f]")
        if stream.at("*", "/", "**"):
            hint = "write the coefficient first, as in '0.5 * K[m d]', and separate tensors with spaces."
            raise stream.unexpected("a tensor, '+', '-' or '->'", hint)
    elif stream.next.kind == "name":
        raise stream.unexpected("'*' after the coefficient", "e.g. '0.5 * K[m d] K[m d]'.")
    elif stream.at("["):
        raise stream.unexpected("'*' after the coefficient", SUM)
    magnitude = ONE if coefficient is None else coefficient
    return TermText(Negative(magnitude) if negative else magnitude, tuple(factors), (start, stream.last.span[1]))


def _coefficient(stream: TokenStream) -> Arith | None:
    """Parses a number, or a product of numbers and parentheses before a `*`. Returns None if a tensor comes first."""
    if stream.next.kind == "name":
        return None
    if not stream.at("(") and stream.next.kind != "number":
        raise stream.unexpected("a tensor such as x[n f], a number or '('")
    coefficient: Arith = _scalar(stream)
    while stream.at("*", "/") and (stream.after.kind == "number" or stream.after.text == "("):
        coefficient = Binary(stream.operator().text, coefficient, _scalar(stream))
    return coefficient


def _scalar(stream: TokenStream) -> Arith:
    """Parses a number or arithmetic in parentheses, with an optional power."""
    if stream.at("("):
        stream.take()
        scalar = parse_sum(stream)
        if stream.at("["):
            raise stream.unexpected("')'", SUM)
        stream.expect(")", "')'")
    elif stream.next.kind == "number":
        scalar = literal(stream.take())
    else:
        raise stream.unexpected("a number or '('", "write arithmetic in parentheses, e.g. '(2 ** d) * K[m d]'.")
    if stream.at("**"):
        stream.operator()
        negative = stream.at("-") and stream.take()
        power = _scalar(stream)
        scalar = Binary("**", scalar, Negative(power) if negative else power)
    return scalar


def _use(stream: TokenStream, need_legs: bool, joined: bool) -> UseText:
    token = stream.take()
    if not stream.at("["):
        if need_legs or stream.at("("):
            hint = f"e.g. '{token.text}[n f]', or '{token.text}[]' for a scalar; write arithmetic in parentheses."
            if stream.at("("):
                hint = f"an expression calls no functions: use a box in a step of its own, and {CONCATENATION}"
            raise Refusal("no-legs", f"'{token.text}' has no legs here.", hint, token.span)
        return UseText(token.text, None, token.span)
    stream.take()
    legs = _legs(stream, closing="]", joined=joined)
    if not stream.at("]"):
        raise stream.unexpected("']'", f"close the legs of '{token.text}' with ']'.")
    end = stream.take()
    return UseText(token.text, legs, (token.start, end.span[1]))


def _legs(stream: TokenStream, closing: str, joined: bool = False) -> tuple[LegToken, ...]:
    legs: list[LegToken] = []
    while stream.next.kind == "name" or (joined and stream.at("(")):
        token = stream.take()
        legs.append(LegToken(token.text, token.span) if token.kind == "name" else _joined_legs(stream, token.start))
    if stream.at("(") and not joined:
        raise stream.unexpected("a leg", "join legs, as in '(h d)', only in a use or in a result.")
    if stream.at(","):
        raise stream.unexpected("a leg", "separate legs with spaces, not commas.")
    if closing == "end" and stream.next.kind != "end":
        raise stream.unexpected("a leg")
    if len(legs) > limits.TENSOR_LEGS:
        message = f"this tensor has more than {limits.TENSOR_LEGS} legs."
        raise Refusal("too-large", message, "split the tensor or merge legs.", legs[-1].span)
    return tuple(legs)


def _joined_legs(stream: TokenStream, start: int) -> LegToken:
    """Parses a joined leg such as `(h d)`, after its opening parenthesis."""
    legs = list[LegToken]()
    while stream.next.kind == "name":
        token = stream.take()
        legs.append(LegToken(token.text, token.span))
    end = stream.expect(")", "a leg or ')'")
    if len(legs) < 2:
        raise Refusal("syntax", "parentheses join two or more legs.", "e.g. 'x[n (h d)]'.", (start, end.span[1]))
    return LegToken("_".join(token.name for token in legs), (start, end.span[1]), tuple(legs))


def _call(stream: TokenStream) -> CallText:
    if stream.next.kind != "name":
        raise stream.unexpected("a name")
    token = stream.take()
    arguments = parse_arguments(stream, _argument) if stream.at("(") else []
    matrix = next((argument for argument in arguments if isinstance(argument, CallText)), None)
    if matrix is not None and token.text != "kron":
        message = f"'{token.text}' takes numbers, not the matrix '{matrix.name}'."
        hint = "give numbers; only 'kron' takes matrices, e.g. 'kron(eye(h), ones(d, d))'."
        raise Refusal("arguments", message, hint, matrix.span)
    return CallText(token.text, tuple(arguments), (token.start, stream.last.span[1]))


def _argument(stream: TokenStream) -> CallText | Arith:
    matrix = stream.next.text in MATRICES and stream.after.text == "("
    return _call(stream) if matrix else parse_sum(stream)
