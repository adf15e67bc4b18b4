"""Measurements of speed and accuracy, and the studies behind docs/findings; not in the wheel."""
