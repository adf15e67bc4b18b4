"""The studies: one folder each, with its options, measurement, result, charts and page."""
