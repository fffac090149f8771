"""The notebook that shows model and measurement side by side."""

from __future__ import annotations

import json
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_notebook_was_run_and_its_code_compiles() -> None:
    notebook = json.loads((DOCS / "cost-model.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in cells)
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert not any(output["output_type"] == "error" for output in outputs)
    for cell in cells:
        compile("".join(cell["source"]), "cell", "exec")
