"""Pages of HTML in one file: templates, styles and drawings that `analyse`, `compare` and `search` share."""
