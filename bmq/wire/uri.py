# SPDX-License-Identifier: Apache-2.0
"""Queue URIs: ``bmq://DOMAIN[.~TIER]/QUEUE[?id=APPID]``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from bmq.errors import InvalidURI

_SCHEME = "bmq://"
_DOMAIN = re.compile(r"[-a-zA-Z0-9._]+\Z")
_TIER = re.compile(r"[-a-zA-Z0-9]+\Z")
_NAME = re.compile(r"[-a-zA-Z0-9_.]+\Z")
_MAX_QUEUE = 64


@dataclass(frozen=True, slots=True)
class QueueUri:
    """A parsed queue URI.

    ::

        uri = bmq.QueueUri.parse("bmq://bmq.test.mem.fanout/orders?id=billing")
        print(uri.domain, uri.queue, uri.app_id)

    Attributes:
        domain: the domain without the tier.
        queue: the queue's name, 1 to 64 characters.
        tier: the tier without the ``.~``, or "".
        app_id: the value of ``?id=``, or "".
        canonical: the URI without the application id, which identifies the queue.
    """

    domain: str
    queue: str
    tier: str = ""
    app_id: str = ""
    canonical: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("domain", "queue", "tier", "app_id"):
            value: object = getattr(self, name)
            if not isinstance(value, str):
                raise InvalidURI(f"{name} must be a str, not {type(value).__name__}")
        # A subclass of str may format itself in other ways; joining takes its characters.
        object.__setattr__(self, "canonical", "".join((_SCHEME, self.qualified_domain, "/", self.queue)))

    @classmethod
    def parse(cls, text: str) -> QueueUri:
        """Parse ``text``.

        Raises:
            InvalidURI: the text is not a queue URI; the error names the invalid part.
        """

        def wrong(what: str) -> InvalidURI:
            return InvalidURI(
                f"queue URI {text!r}: {what}. The form is bmq://DOMAIN[.~TIER]/QUEUE[?id=APPID]"
            )

        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidURI(f"a queue URI must be a str, not {type(text).__name__}")
        text = str.__str__(text)
        if not text.startswith(_SCHEME):
            raise wrong('it must start with "bmq://"')
        authority, _, path = text[len(_SCHEME) :].partition("/")
        domain, has_tier, tier = authority.partition(".~")
        if not _DOMAIN.match(domain):
            raise wrong(
                f"the domain {domain!r} must consist of letters, digits, '-', '.' and '_'"
                if domain
                else "the domain is missing"
            )
        if has_tier and not _TIER.match(tier):
            raise wrong(f"the tier {tier!r} must consist of letters, digits and '-'")
        queue, question, query = path.partition("?")
        if not queue:
            raise wrong("the queue name is missing")
        if not _NAME.match(queue):
            raise wrong(f"the queue name {queue!r} must consist of letters, digits, '-', '_' and '.'")
        if len(queue) > _MAX_QUEUE:
            raise wrong(f"the queue name has {len(queue)} characters; at most {_MAX_QUEUE} are allowed")
        app_id = ""
        if question:
            key, equals, app_id = query.partition("=")
            if key != "id" or not equals:
                raise wrong(f"the only possible query is ?id=APPID, not {query!r}")
            if not _NAME.match(app_id):
                raise wrong(f"the appId {app_id!r} must consist of letters, digits, '-', '_' and '.'")
        return cls(domain, queue, tier, app_id)

    @property
    def qualified_domain(self) -> str:
        """The domain with its tier, as in the name of the domain's configuration."""
        return ".~".join((self.domain, self.tier)) if str.__len__(self.tier) else self.domain

    def __str__(self) -> str:
        return f"{self.canonical}?id={self.app_id}" if self.app_id else self.canonical
