"""Studies: a search over a space of designs, its trials in a store, each trained in a process of its own."""
