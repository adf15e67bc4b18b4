"""Theory of a head: limits, exponents, constants, curves and bounds."""

from esscher.math import limits, theory
from esscher.math.heads import ArrayHead as ArrayHead
from esscher.math.heads import Tokens as Tokens
from esscher.math.heads import WeightHead as WeightHead
from esscher.math.limits import *  # noqa: F403 - its own __all__ says what
from esscher.math.statistics import Rate as Rate
from esscher.math.theory import *  # noqa: F403 - its own __all__ says what

__all__ = ["ArrayHead", "Rate", "Tokens", "WeightHead"]
__all__ += limits.__all__
__all__ += theory.__all__
