# SPDX-License-Identifier: Apache-2.0
"""Passwords in the keyring of the system, with the library ``keyring`` of the extra ``keyring``.

The library is imported on first use: the import and the search for a keyring take a tenth of a second. Each
kind of keyring raises other classes of errors, and each call catches every exception.
"""

from __future__ import annotations

from typing import Any

from bmq._version import install
from bmq.cli.messages import BadInput

__all__ = ["forget", "load", "store", "why_unusable"]

_EXTRA = f"the keyring needs an extra: {install('keyring')}"


def _service(context: str) -> str:
    return f"bmq:{context}"


def _library() -> Any:
    try:
        import keyring
    except ModuleNotFoundError as error:
        if error.name != "keyring":
            raise
        raise BadInput(_EXTRA) from None
    return keyring


def why_unusable() -> str:
    """Return the reason why the keyring is unusable; empty for a usable keyring."""
    try:
        library = _library()
        priority = float(library.get_keyring().priority)
    except BadInput as error:
        return str(error)
    except Exception as error:
        return f"the keyring of this system does not work: {_short(error)}"
    return "" if priority > 0 else "this system has no keyring"


def store(context: str, user: str, password: str) -> None:
    """Store the password of a context.

    Raises:
        BadInput: the system has no keyring, or the keyring refuses.
    """
    try:
        _library().set_password(_service(context), user, password)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"the keyring does not store the password of {user}: {_short(error)}. Unlock the keyring, or use "
            "--store file"
        ) from None


def load(context: str, user: str) -> str:
    """Return the password of a context.

    Raises:
        BadInput: the system has no keyring, the keyring refuses, or the keyring lacks the password.
    """
    again = f"bmq contexts add {context} ... --replace stores the password again"
    try:
        found = _library().get_password(_service(context), user)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"the keyring does not return the password of {user}: {_short(error)}. Unlock the "
            f"keyring, or: {again}"
        ) from None
    if not isinstance(found, str):
        raise BadInput(f"the keyring has no password of {user} for the context {context}: {again}")
    return found


def forget(context: str, user: str) -> str:
    """Delete the password of a context; return the reason of a failure, or ""."""
    try:
        _library().delete_password(_service(context), user)
    except Exception as error:
        return _short(error)
    return ""


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200]
