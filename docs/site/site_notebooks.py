"""Runs the notebooks and stores their outputs: `python docs/site/site_notebooks.py [NAME...]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
SECONDS = 600  # a cell


def executed(path: Path) -> Any:
    """The notebook with the outputs of a run in an empty folder. Raises CellExecutionError."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of the run
        if cell.cell_type == "code":  # progress and warnings go to stderr
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main(names: list[str]) -> int:
    """Runs all notebooks, or those named."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not names or path.stem in names:
            nbformat.write(executed(path), path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
