"""The ground floor: errors, checks, random streams, files that may come from anybody."""
