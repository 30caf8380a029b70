"""Writes the generated files in the repository: codegen/, schemas, and pages and pictures of designs in docs/.

Run `python -m docs.generate [--check] [codegen] [docs] [schema]` in a checkout. Without a part, it writes
all three parts; `--check` only compares. The parts `resources`, which compiles all Triton kernels, and `parity` run
only on request. All content comes from the files in specs/; no design is named here.
"""
