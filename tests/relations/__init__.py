"""Relations that every design keeps, on every backend: `python -m tests.relations` explores them with new seeds."""
