"""The cost tables of the papers compared with our counts, with a formula for each difference; torch is not needed."""

from tensornet_attn.cost.paper.compare import Compared, Comparison, compare
from tensornet_attn.cost.paper.epa import EPA
from tensornet_attn.cost.paper.fish import FISH, SWIN
from tensornet_attn.cost.paper.fmm import FMM
from tensornet_attn.cost.paper.mgk import MGK
from tensornet_attn.cost.paper.model import Adjustment, Count, Part, Row, Table
from tensornet_attn.cost.paper.tuformer import TUFORMER
from tensornet_attn.errors import InputError, nearest

__all__ = [
    "ALL", "TABLES", "Adjustment", "Compared", "Comparison", "Count", "Part", "Row", "Table", "compare", "table_named",
    "tables_named",
]  # fmt: skip

TABLES = {table.name: table for table in (EPA, FISH, MGK, TUFORMER, FMM, SWIN)}
ALL = "all"  # selects every table


def tables_named(name: str) -> tuple[Table, ...]:
    """The cost table of a paper, or all tables for `all`. Raises InputError, with the most similar name.

    >>> [table.name for table in tables_named("all")]
    ['epa', 'fish', 'mgk', 'tuformer', 'fmm', 'swin']
    """
    return tuple(TABLES.values()) if name == ALL else (table_named(name),)


def table_named(name: str) -> Table:
    """The cost table of a paper. Raises InputError, with the most similar name.

    >>> table_named("fish").rows[0].where
    'equations'
    """
    if name not in TABLES:
        raise InputError(f"there is no cost table '{name}': {nearest(name, (*TABLES, ALL))}")
    return TABLES[name]
