"""What theory says about a head: exponents, constants, curves, bounds, hardmax."""

from esscher.math.theory import *  # noqa: F403 - its own __all__ says what
from esscher.math.theory import __all__ as __all__
