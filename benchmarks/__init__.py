"""Measurements of speed and accuracy, and the studies behind docs/findings.md; not in the wheel."""
