"""The cost of a model: its designs, priced by `ta.cost`, the embedding, the norms and the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensornet_attn import compiler
from tensornet_attn.cost.report import Report
from tensornet_attn.cost.sizes import whole
from tensornet_attn.models.fit import Fitted

Stacks = Mapping[str, Sequence[Mapping[str, Fitted]]]  # name: blocks, each a mapping of role to design


@dataclass(frozen=True)
class Row:
    """One row of the table: a design, the embedding, the norms or the output. MACs of the whole batch, as planned."""

    place: str
    what: str
    macs: int = 0
    routed_macs: int = 0
    parameters: int = 0
    frozen: int = 0


@dataclass(frozen=True)
class ModelCost:
    """The cost of one forward pass at `n` positions; `m` is the length of the source, or of memory and segment.

    `macs`: multiply-adds of the products of the whole batch, as planned; `flops` are 2 MACs. `routed_macs`: the MACs if
    only the entries selected by a topk are computed. `parameters`: trainable elements; tied weights count once.
    `frozen`: other elements.
    """

    name: str
    n: int
    m: int
    batch: int
    rows: tuple[Row, ...]

    @property
    def macs(self) -> int:
        return sum(row.macs for row in self.rows)

    @property
    def routed_macs(self) -> int:
        return sum(row.routed_macs for row in self.rows)

    @property
    def flops(self) -> int:
        """Floating-point operations: 2 MACs."""
        return 2 * self.macs

    @property
    def parameters(self) -> int:
        return sum(row.parameters for row in self.rows)

    @property
    def frozen(self) -> int:
        return sum(row.frozen for row in self.rows)

    def as_dict(self) -> dict[str, object]:
        totals = ("macs", "routed_macs", "flops", "parameters", "frozen")
        sizes = {"model": self.name, "n": self.n, "m": self.m, "batch": self.batch}
        return sizes | {name: getattr(self, name) for name in totals} | {"rows": [vars(row) for row in self.rows]}

    def to_text(self) -> str:
        """A table with one line per design."""
        head = f"{self.name}: n = {self.n}, m = {self.m}, batch {self.batch}\n"
        table = [("", "", "MACs", "routed MACs", "parameters")]
        rows = [*self.rows, Row("total", "", self.macs, self.routed_macs, self.parameters)]
        table += [(r.place, r.what, f"{r.macs:,}", f"{r.routed_macs:,}", f"{r.parameters:,}") for r in rows]
        left, right = (max(len(row[column]) for row in table) for column in (0, 1))
        return head + "".join(
            f"\n{label:{left}}  {what:{right}}  {macs:>15}  {routed:>15}  {count:>12}".rstrip()
            for label, what, macs, routed, count in table
        )


def cost(name: str, config: Any, stacks: Stacks, n: int | None, batch: int, m: int | None, dtype: str) -> ModelCost:
    """The cost of a model; see `ModelCost`. Raises InputError for lengths that are not positive integers."""
    n = whole("n", config.length if n is None else n)
    m = whole("m", n + getattr(config, "memory", 0) if m is None else m)
    cls = getattr(config, "pooling", "") == "cls"
    priced: dict[int, Report] = {}
    rows = [_embedding(config, cls, n, batch)]
    for stack, blocks in stacks.items():
        queries = m if stack == "encoder" else n + cls
        for index, block in enumerate(blocks):
            for role, fitted in block.items():
                sees_more = role == "cross" or (role == "mixer" and config.kind == "language_model")
                keys = m if fitted.context and sees_more else queries
                if id(fitted) not in priced:
                    priced[id(fitted)] = compiler.cost(fitted.design, queries, keys, batch, dtype, fitted.causal)
                report, best = priced[id(fitted)], priced[id(fitted)].best
                where, what = f"{stack}.{index}.{role}", fitted.design.name
                rows.append(Row(where, what, report.macs, best.total.routed_macs, best.parameters, best.frozen))
    norms = len(rows) - 1 + (0 if config.post_norm else len(stacks))  # with the final norm of each stack
    per_norm = config.width * (2 if config.norm == "layernorm" else 1)
    rows += [Row("norms", config.norm, parameters=norms * per_norm), _output(config, n, batch)]
    return ModelCost(name, n, m, batch, tuple(rows))


def _embedding(config: Any, cls: bool, n: int, batch: int) -> Row:
    """The tables of tokens and positions and the row of `pooling: cls`, without MACs, or the projection of features."""
    features = getattr(config, "features", None)
    rows = (config.vocabulary or 0) + (getattr(config, "target_vocabulary", None) or 0) + cls
    rows += 0 if features is None else features + 1
    rows += (config.length + cls) * (config.positions == "learned") * (1 + (config.kind == "seq2seq"))
    macs = batch * n * (features or 0) * config.width
    return Row("embedding", config.positions, macs, macs, parameters=rows * config.width)


def _output(config: Any, n: int, batch: int) -> Row:
    if config.kind == "sequence_classifier":
        width = config.width * (config.length if config.pooling == "concat" else 1)
        macs = batch * width * config.classes
        return Row("output", "linear", macs, macs, (width + 1) * config.classes)
    out = getattr(config, "target_vocabulary", None) or config.vocabulary
    macs = batch * n * config.width * out
    parameters = (0 if config.tied else config.width * out) + getattr(config, "output_bias", False) * out
    return Row("output", "tied" if config.tied else "linear", macs, macs, parameters)
