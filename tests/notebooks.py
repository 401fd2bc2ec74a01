"""The notebooks of `docs/notebooks/`, run in a process and a folder of their own.

python -m tests.notebooks      run all, and write them with what they print
"""

from pathlib import Path
import re
import sys
import tempfile

from nbclient import NotebookClient
import nbformat

from tests.documents import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SECONDS = 300


def ran(path, folder):
    """A notebook as it was run in a folder. Raises `CellExecutionError`."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    return client.execute()


def printed(notebook):
    """The texts that its cells print, joined."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    return "\n".join(output.get("text", "") for output in outputs)


def tidied(notebook):
    """Without what differs from run to run: times of execution, and the names of files in which cells are compiled."""
    for cell in notebook.cells:
        cell.metadata = {}
        kept = [output for output in cell.get("outputs", ()) if output.get("name") != "stderr"]
        for output in kept:
            if "text" in output:
                output["text"] = re.sub(r'"[^"]*/ipykernel_\d+/\d+\.py"', '"cell.py"', output["text"])
        if "outputs" in cell:
            cell.outputs = kept
    return notebook


def main():
    """Run all and write them."""
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(tidied(ran(path, Path(folder))), path)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
