"""The plain data that all layers speak of: arithmetic as trees, and the steps of a diagram."""
