"""Exponents, constants, curves and bounds of a head, and simulations to set beside them."""

from esscher.math import simulation, theory
from esscher.math.simulation import *  # noqa: F403 - its own __all__ says what
from esscher.math.theory import *  # noqa: F403 - its own __all__ says what

__all__: list[str] = []
__all__ += theory.__all__
__all__ += simulation.__all__
