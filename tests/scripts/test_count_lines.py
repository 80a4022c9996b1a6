"""The budget of code: `scripts/count_lines.py` counts, and the product stays under a number that only goes down."""

import subprocess
import sys

from scripts.count_lines import ROOT, code_lines, counts

PRODUCT_BUDGET = 12_420  # code lines of python_backends and client
SCRIPTS_BUDGET = 3_970  # lines of Python and bash


def test_what_is_no_code_does_not_count():
    source = (
        '"""Of the module,\nin two lines."""\n\nimport os\nfrom pathlib import (\n    Path,\n)\n\n# why\n\n\ndef f():\n'
    )
    assert code_lines(source + '    """Of f."""\n    return """a\nb"""  # what\n') == 3


def test_the_budget_holds():
    found = counts()
    assert found["product"] <= PRODUCT_BUDGET and found["scripts (all lines)"] <= SCRIPTS_BUDGET, found


def test_it_prints_what_it_counts():
    done = subprocess.run([sys.executable, ROOT / "scripts/count_lines.py"], capture_output=True, text=True, check=True)
    assert f"product{counts()['product']:20}" in done.stdout
