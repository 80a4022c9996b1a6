"""The reference page is what the schema says."""

from pathlib import Path

from python_backends.config.reference import reference, with_reference
from python_backends.config.schema import keys_of
from python_backends.config.stage_keys import STAGE_KEYS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "deploy.md"


def test_the_page_has_the_tables_of_the_schema():
    page = PAGE.read_text()
    assert page == with_reference(page), "run python -m python_backends.config.reference docs/deploy.md"


def test_every_key_has_a_meaning():
    for cls in STAGE_KEYS.values():
        for name, item in keys_of(cls).items():
            assert item.metadata["doc"] and f"| `{name}` |" in reference()
