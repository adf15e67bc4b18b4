"""What every floor uses: errors, checks, random streams, files that may come from anybody."""
