"""docs/measurements.md holds the recorded results."""

from tests.bench.measurements import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "python -m tests.bench.measurements"
    assert "{{" not in page()
