"""transformers, imported when it is needed and kept quiet while it loads."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Iterator
from typing import Any

from esscher.core.errors import InputError

#: Command that installs everything needed to read a model.
INSTALL = "pip install 'esscher[models]'"


def transformers_module(name: str = "transformers") -> Any:
    """Import transformers or one of its modules; ``Any``, since its own types cost mypy minutes.

    Raises
    ------
    InputError
        When transformers is not installed, with the command that installs it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"reading a model needs {name.partition('.')[0]}, which cannot be imported ({error}); "
            f"install it with: {INSTALL}"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings and progress bars of transformers, and leave its settings as found.

    Some of its bars bypass its own switch and write to standard error, which is why that is
    redirected too.
    """
    logging = transformers_module("transformers.utils.logging")
    hub = transformers_module("huggingface_hub.utils")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_bars = not hub.are_progress_bars_disabled()
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.set_verbosity(logging.CRITICAL)
        if bars:
            logging.disable_progress_bar()  # switches those of the hub as well
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
            if not hub_bars:
                hub.disable_progress_bars()
