"""TLS between a command, its scheduler and its workers, as the user's Dask configuration says.

Dask itself goes on without TLS when a certificate is missing, or fails when the first connection is
made. Here the settings are checked before anything is loaded.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esscher.core.errors import InputError
from esscher.core.untrusted import open_regular, shortened

#: Protocols of Dask that are encrypted.
ENCRYPTED = ("tls", "wss")
#: The setting that wants all connections encrypted.
REQUIRED = "distributed.comm.require-encryption"
#: Where the settings of TLS stand in Dask's configuration.
SETTINGS = "distributed.comm.tls"
#: Where that is explained.
GUIDE = "see docs/guides/cluster.md"


def is_encrypted(address: str) -> bool:
    """Whether an address, or the name of a protocol, is one of TLS."""
    return address.split("://")[0].lower() in ENCRYPTED


def client_security(address: str) -> Any:
    """Return the ``Security`` that connects to a given scheduler, or None for Dask's own choice.

    Raises
    ------
    InputError
        If the address and the configuration do not fit, or the configuration is not complete.
    """
    import dask

    if dask.config.get("distributed.client.security-loader", None):
        return None  # a site's own function that finds the certificates
    security = _configured()
    if is_encrypted(address):
        return checked(security, ("client",), f"the scheduler at {address} uses TLS")
    if security.require_encryption:
        raise InputError(
            f"the scheduler's address is {address}, which is not encrypted, but your Dask "
            f"configuration wants {REQUIRED}; give an address that begins with tls://"
        )
    return security


def cluster_security(protocol: str | None) -> Any:
    """Return the ``Security`` of a cluster of our own, or None without TLS.

    Parameters
    ----------
    protocol
        Protocol that the cluster's description asks for, if any.

    Raises
    ------
    InputError
        If TLS is wanted and a certificate is missing or cannot be used.
    """
    security = _configured()
    if security.require_encryption:
        if protocol is not None and not is_encrypted(protocol):
            raise InputError(
                f"the cluster's protocol is {shortened(protocol)}, which is not encrypted, but "
                f"your Dask configuration wants {REQUIRED}; leave the protocol out"
            )
        return checked(
            security, ("client", "scheduler", "worker"), f"your Dask configuration wants {REQUIRED}"
        )
    if protocol is not None and is_encrypted(protocol):
        why = f"the cluster's protocol is {shortened(protocol)}"
        return checked(security, ("client", "scheduler", "worker"), why)
    return None


def for_jobs(security: Any) -> Any:
    """Let the files of a worker's certificate have names that its job can use anywhere."""
    security.tls_worker_key = security.tls_worker_key or security.tls_worker_cert
    for name in ("tls_ca_file", "tls_worker_cert", "tls_worker_key"):
        value = getattr(security, name)
        if "\n" not in value:
            setattr(security, name, os.path.abspath(value))
    return security


def checked(security: Any, roles: Sequence[str], why: str) -> Any:
    """The security itself, if it holds usable certificates for these roles.

    Parameters
    ----------
    security
        A ``distributed.security.Security``.
    roles
        ``"client"``, ``"scheduler"``, ``"worker"``.
    why
        Why TLS is used, for messages.

    Raises
    ------
    InputError
        If a certificate is missing or cannot be used.
    """
    for role in roles:
        files = security.get_tls_config_for_role(role)
        names = {
            "ca_file": f"{SETTINGS}.ca-file",
            "cert": f"{SETTINGS}.{role}.cert",
            "key": f"{SETTINGS}.{role}.key",
        }
        for part, name in names.items():
            _check_file(files[part], name, why, needed=part != "key")
        try:
            security.get_connection_args(role)
            security.get_listen_args(role)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = error.reason if isinstance(error, ssl.SSLError) else None
            raise InputError(
                f"{why}, but {names['ca_file']}, {names['cert']} and {names['key']} do not work "
                f"({reason or error}); they must be PEM files, and the key that of the "
                f"certificate ({GUIDE})"
            ) from error
    return security


def _check_file(value: Any, name: str, why: str, needed: bool) -> None:
    if not value:
        if needed:
            raise InputError(
                f"{why}, but your Dask configuration has no {name}; set it to the name of a PEM "
                f"file ({GUIDE})"
            )
        return
    if not isinstance(value, str):
        raise InputError(f"{name} is {shortened(value)}; it must be the name of a PEM file")
    if "\n" in value:  # the certificate itself
        return
    try:
        open_regular(Path(value)).close()
    except OSError as error:
        raise InputError(
            f"{why}, but {name} is {value}, which cannot be read ({error.strerror or error}); set "
            f"it to the name of a PEM file ({GUIDE})"
        ) from error


def _configured() -> Any:
    """Return the ``Security`` of Dask's configuration, from files or environment variables."""
    from distributed import security

    make: Any = security.Security
    try:
        return make()
    except (ImportError, TypeError, ValueError) as error:
        raise InputError(f"your Dask configuration cannot be used: {error}") from error
