"""Options of probes of tiny models that take seconds."""

from __future__ import annotations

#: Context mode.
SEQUENCES = {"context": 64, "tokens": 192, "sizes": [4, 8, 16], "replicates": 6}
#: Pooled mode.
SMALL = {"tokens": 300, "context": 32, "sizes": [16, 32, 64, 128], "replicates": 6}
