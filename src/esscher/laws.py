"""Token laws: sampling, moments, and K with gradient and Hessian."""

from esscher.math.laws import *  # noqa: F403 - its own __all__ says what
from esscher.math.laws import __all__ as __all__
