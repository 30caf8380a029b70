"""The page on the decoding caches of shipped designs."""

from __future__ import annotations

from tensornet_attn.cli.generate.catalogue import Catalogue, Entry
from tensornet_attn.cli.generate.page import code, template
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.plan.decoding import as_decoder
from tensornet_attn.plan.parts import Decoding, Kept

LENGTH = 4096
COLUMNS = ("design", "cache", "elements per position", "constant elements", f"after {LENGTH:,} positions")


def decoding_page(catalogue: Catalogue) -> str:
    """docs/decoding_state.md: one line per design, by family; for designs without a cache, the reason."""
    families, refused = dict[str, list[tuple[str, ...]]](), list[tuple[str, str]]()
    for family, entries in catalogue.families().items():
        for entry in entries:
            try:
                found = as_decoder(build(entry.design))
            except InputError as error:
                refused.append((entry.name, str(error).split(": ", 2)[-1]))  # NAME: no cache can be kept: REASON
            else:
                families.setdefault(family, []).append(_row(entry, found))
    return template("decoding.md.jinja").render(families=families, refused=refused, columns=COLUMNS, length=LENGTH)


def _row(entry: Entry, found: Decoding) -> tuple[str, ...]:
    """The cells: design, cached tensors, elements per position, constant elements, elements at LENGTH positions."""
    growing = sum(found.elements(one) for one in found.kept if _grows(one))
    fixed = sum(found.elements(one) * (one.rows(LENGTH) if one.leg else 1) for one in found.kept if not _grows(one))
    kept = ", ".join(map(_words, found.kept)) or "nothing"
    name = f"[{entry.name}](designs/{entry.name}.md)"
    return name, kept, f"{growing:,}", f"{fixed:,}", f"{found.floats(LENGTH):,}"


def _grows(one: Kept) -> bool:
    return one.leg is not None and one.reach is None


def _words(one: Kept) -> str:
    last = "" if one.reach is None else f" of the last {one.reach + 1:,}"
    return code(f"{one.name}[{' '.join(one.legs)}]") + last
