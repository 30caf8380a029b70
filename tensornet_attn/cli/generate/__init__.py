"""Writes what is generated and committed: codegen/, the index of designs, a page and two pictures a design, schemas.

`python -m tensornet_attn.cli.generate [--check] [codegen] [docs] [schema]`, in a checkout: everything, where no part is
named; `--check` only compares. `resources` is made on demand alone: it compiles all Triton kernels.
Everything comes from the files in specs/: to add a design is to add a file, and nothing here knows its name.
"""
