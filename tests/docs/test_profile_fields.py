"""The document of a profile's fields is the schema's: nobody writes it by hand."""

from tools.profile_fields import FILE, document


def test_the_document_is_up_to_date():
    assert FILE.read_text() == document(), "run: python tools/profile_fields.py --write"
