"""Options of probes of tiny models that take seconds."""

from __future__ import annotations

import xarray as xr

#: Context mode.
SEQUENCES = {"context": 64, "tokens": 192, "sizes": [4, 8, 16], "replicates": 6}
#: Pooled mode.
SMALL = {"tokens": 300, "context": 32, "sizes": [16, 32, 64, 128], "replicates": 6}


def same_numbers(one: xr.Dataset, other: xr.Dataset) -> None:
    """To the bit; when and from what they were made is not compared."""
    xr.testing.assert_identical(one.drop_attrs(), other.drop_attrs())
