# SPDX-License-Identifier: Apache-2.0
"""The domains of a broker: the sources of configurations, and the queues of each domain."""

from __future__ import annotations

import re
from pathlib import Path

from bmq.broker._queue import BrokerQueue
from bmq.broker._storage import CapacityMeter
from bmq.broker.domain_config import DomainConfig, InvalidDomain, Redirect, parse_domain
from bmq.errors import InvalidExpression, StatusCategory
from bmq.subscriptions import Expression
from bmq.wire.control import Status

__all__ = ["Domain", "DomainSource", "Refused", "check_subscriptions"]

_MISSING = -1
#: Characters allowed by queue URIs in a domain with a tier. No such name leads to another directory.
_FILE_NAME = re.compile(r"[-a-zA-Z0-9._~]+\Z")
#: File names have at most 255 bytes, ``.json`` included.
_LONGEST_NAME = 250
#: Domains that the error for an unknown domain names.
_LISTED = 20


class Refused(Exception):
    """A request about a queue or a domain is refused; ``status`` is sent to the client."""

    def __init__(self, category: StatusCategory, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.status = Status(category=category, code=code, message=message)
        #: Whether a domain has no configuration at all.
        self.missing = (category, code) == (StatusCategory.E_UNKNOWN, _MISSING)


class Domain:
    """A domain in use.

    Attributes:
        config: the configuration.
        usage: the stored messages and bytes of all queues.
        queues: the queues by canonical URI.
        removing: whether the removal of the domain has begun; its queues cannot be opened.
        removed: whether the first part of the removal has ended.
    """

    def __init__(self, config: DomainConfig) -> None:
        self.config = config
        self.usage = CapacityMeter(config.domain_limits)
        self.queues: dict[str, BrokerQueue] = {}
        self.removing = self.removed = False

    def configure(self, config: DomainConfig) -> None:
        """Use another configuration, for messages posted and queues opened from now on.

        Raises:
            InvalidDomain: the configuration would change the mode or the kind of storage. Both are fixed.
        """
        if config.mode is not self.config.mode:
            raise InvalidDomain(config.name, "mode", "cannot be changed by reconfiguring", decodes=True)
        if config.file_backed is not self.config.file_backed:
            raise InvalidDomain(config.name, "storage.config", "cannot be changed", decodes=True)
        if config != self.config:
            # As in a real broker, which does not undo a removal otherwise.
            self.removing = self.removed = False
        self.config = config
        self.usage.limits = config.domain_limits
        for queue in self.queues.values():
            queue.configure(config)


class DomainSource:
    """Finds the configuration of a domain by the domain's name.

    Args:
        configured: domains given in the program, by name; take precedence over files.
        directory: a broker's configuration directory, with domains in ``domains/<name>.json``.
    """

    def __init__(self, configured: dict[str, DomainConfig | Redirect], directory: Path | None = None) -> None:
        self.configured = configured
        self.directory = directory

    def load(self, name: str) -> DomainConfig:
        """Return a domain's configuration, following one redirection.

        Raises:
            Refused: the domain does not exist, or the configuration is unusable.
        """
        found = self._find(name)
        if isinstance(found, Redirect):
            target = self._find(found.target)
            if isinstance(target, Redirect):
                loop = f"{name} -> {found.target} -> {target.target}"
                raise Refused(StatusCategory.E_UNKNOWN, f"Too many redirections: {loop}", -3)
            return target
        return found

    def names(self) -> list[str]:
        """Return the names of all domains."""
        names = set(self.configured)
        if self.directory is not None:
            names.update(path.stem for path in (self.directory / "domains").glob("*.json"))
        return sorted(names)

    def _find(self, name: str) -> DomainConfig | Redirect:
        config = self.configured.get(name)
        try:
            if config is None:
                config = self._read(name)
            if isinstance(config, DomainConfig):
                check_subscriptions(config)
        except InvalidDomain as error:
            if error.decodes:
                text = f"Attempt failed. Details: {error}"
                raise Refused(StatusCategory.E_REFUSED, text, -10) from error
            text = f"Error while decoding domain configuration: {error}"
            raise Refused(StatusCategory.E_UNKNOWN, text, -2) from error
        return config

    def _read(self, name: str) -> DomainConfig | Redirect:
        """Read a domain's file; no domain exists under a name that is illegal for files."""
        # Clients must not see a path of this machine.
        shown = f"domains/{name}.json"
        try:
            if self.directory is not None and len(name) <= _LONGEST_NAME and _FILE_NAME.match(name):
                path = self.directory / "domains" / f"{name}.json"
                if path.is_file():
                    return parse_domain(name, path.read_bytes(), source=shown)
        except OSError as error:
            raise InvalidDomain(shown, "", f"cannot be read: {error.strerror}") from error
        names = self.names()
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        known = f"{', '.join(names[:_LISTED]) or 'none'}{more}"
        text = f"Domain file '{shown}' doesn't exist; the domains of this broker: {known}"
        raise Refused(StatusCategory.E_UNKNOWN, text, _MISSING)


def check_subscriptions(config: DomainConfig) -> None:
    """Refuse application subscriptions that do not compile.

    Raises:
        InvalidDomain: a subscription does not compile; the error names the subscription and the reason.
    """
    for index, subscription in enumerate(config.subscriptions):
        if not subscription.text:
            continue
        try:
            Expression(subscription.text)
        except InvalidExpression as error:
            member = f"definition.parameters.subscriptions[{index}].expression.text"
            raise InvalidDomain(config.name, member, str(error), decodes=True) from error
