"""The table of operations is the compiler's: nobody writes it by hand."""

from tools.operation_table import FILE, document


def test_the_document_is_up_to_date():
    assert FILE.read_text() == document(), "run: python tools/operation_table.py --write"
