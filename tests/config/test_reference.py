"""The reference page is what the schema says."""

import pytest

from python_backends.config.reference import PAGES, reference, with_reference
from python_backends.config.schema import keys_of
from python_backends.config.stage_keys import STAGE_KEYS


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_page_has_the_tables_of_the_schema(path):
    page = path.read_text()
    assert page == with_reference(page, PAGES[path]), "run python -m python_backends.config.reference"


def test_every_key_has_a_meaning():
    for cls in STAGE_KEYS.values():
        for name, item in keys_of(cls).items():
            assert item.metadata["doc"] and f"| `{name}` |" in reference()
