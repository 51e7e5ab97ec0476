"""From an `Analysis` to `report.html`. `page.write_report` is where to begin.

- `page` puts the page together, from one `section_*` module for each question that it answers;
- `advice` decides what would help, from `evidence`: the figures that its rules look at;
- `charts` draws, `markup` has tables, bars and numbers; `page.css` and `page.js` are put into the page.
"""
