"""What happened when: events, their analysis, and the report."""
