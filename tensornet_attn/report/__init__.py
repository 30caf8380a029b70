"""Self-contained HTML pages: the templates, styles and drawings that `analyse`, `compare` and `search` share."""
