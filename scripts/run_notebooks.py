"""Run the notebooks of the manual and keep what they show: python scripts/run_notebooks.py"""

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"

if __name__ == "__main__":
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # the time of day
        nbformat.write(notebook, path)
        print(path.name, f"{os.path.getsize(path):,} bytes")
