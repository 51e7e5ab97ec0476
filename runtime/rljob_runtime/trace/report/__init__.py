"""From figures to `report.html`: sections, charts, advice."""
