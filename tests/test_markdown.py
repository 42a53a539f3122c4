from __future__ import annotations

from doppler.markdown import markdown_table


def test_a_table_has_a_line_for_each_row() -> None:
    assert markdown_table(("name", "value"), [("a", 1 / 3), ("b", 12_345)]) == (
        "| name | value |\n| --- | --- |\n| a | 0.3333 |\n| b | 12345 |"
    )


def test_no_text_breaks_out_of_its_cell() -> None:
    assert markdown_table(("finding",), [("op a|b\nfailed",)]).splitlines()[2:] == [
        "| op a\\|b failed |"
    ]
