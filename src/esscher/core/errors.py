"""The exceptions Esscher raises on purpose.

Everything a caller can put right is an :class:`InputError`; the command line turns it into one
line on standard error and exit code 2.
"""

from __future__ import annotations


class EsscherError(Exception):
    """Base class of the exceptions that Esscher raises on purpose."""


class InputError(EsscherError, ValueError):
    """An argument that cannot be used; the message names the value, the place and the remedy."""


class UndefinedError(EsscherError, ArithmeticError):
    """A quantity that does not exist for this object, such as the covariance of a Cauchy law."""
