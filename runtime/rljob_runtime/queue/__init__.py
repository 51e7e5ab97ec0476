"""The sample queue: bounded, leased, acknowledged, authenticated."""
