"""What of a terminal and of a report is in a picture."""

from tools.site.pictures import as_html, beginning_at, frames

WRITTEN = (
    "  job   cpu\r\n\r\n\x1b[?25l  starting\r\x1b[2K"
    "  step 1\r\n  queue 4\r\x1b[2K\x1b[1A\x1b[2K"
    "  \x1b[1mstep 2\x1b[0m\r\n  queue 2\r\n\x1b[?25h  done\r\n"
)


def test_frames_of_a_live_view() -> None:
    assert frames(WRITTEN) == [
        "  job   cpu",
        "  starting",
        "  step 1\n  queue 4",
        "  \x1b[1mstep 2\x1b[0m\n  queue 2",
        "  done",
    ]


def test_a_terminal_s_colours_are_kept() -> None:
    shown = as_html(frames(WRITTEN)[3])
    assert "font-weight: bold" in shown and "queue 2" in shown


def test_a_part_of_a_page() -> None:
    page = "<body><h2 id='a'>A</h2><h2 id='b'>B</h2></body>"
    assert beginning_at(page, None) == page
    assert "getElementById('b')" in beginning_at(page, "b")
