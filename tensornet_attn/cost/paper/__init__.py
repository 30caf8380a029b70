"""The cost tables of the papers beside ours, each difference a named formula; torch is not needed."""

from tensornet_attn.cost.paper.compare import Compared, Comparison, compare
from tensornet_attn.cost.paper.model import Adjustment, Count, Part, Row, Table
from tensornet_attn.cost.paper.tables import TABLES, table_named, tables_named

__all__ = [
    "TABLES",
    "Adjustment",
    "Compared",
    "Comparison",
    "Count",
    "Part",
    "Row",
    "Table",
    "compare",
    "table_named",
    "tables_named",
]
