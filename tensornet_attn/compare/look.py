"""How the page of a comparison looks beyond what all pages share: light and dark, tables with swatches, cards."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #52606d; --line: #d9e2ec; --page: #fff; --mark: #e7f1fb;
  --letters: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --soft: #a3b1bf; --line: #3a4653; --page: #14191f; --mark: #1e2d3d; } }
body { color: var(--ink); background: var(--page); max-width: 1180px; }
h2 { border-color: var(--line); }
.note, figcaption, caption { color: var(--soft); }
th, td, tr.whole td { border-color: var(--line); }
a { color: inherit; }
p.verdict { font-weight: 600; }
nav ul { columns: 1; }
table.rows { width: 100%; }
table.rows th, table.rows td { white-space: nowrap; }
table.rows th, table.rows td { padding: .25rem .55rem; }
table.rows th:first-child, table.rows td:first-child { padding-left: 0; }
td svg { vertical-align: middle; }
svg.swatch { margin-right: .5rem; }
line.seed { stroke: var(--ink); stroke-width: 1; opacity: .7; }
.badge { margin-left: .5rem; padding: .05rem .4rem; border-radius: 3px; background: var(--mark); font-size: .8em; }
figure.curves { overflow-x: auto; }
figure.curves > svg { width: 100%; min-width: 680px; height: auto; }
.designs { display: grid; grid-template-columns: repeat(auto-fill, minmax(360px, 1fr)); gap: 1rem; }
.card { margin: 0; border: 1px solid var(--line); border-radius: 6px; overflow: hidden; }
.card > div { background: #fff; color: #1f2933; padding: .8rem; display: flex; justify-content: center; }
.card svg { max-width: 100%; height: auto; max-height: 420px; }
.card figcaption { padding: .6rem .8rem; }
details { margin: 1.2rem 0; }
summary { cursor: pointer; color: var(--soft); }
pre { overflow-x: auto; font-size: .82rem; color: var(--soft); }
"""
