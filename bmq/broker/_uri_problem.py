# SPDX-License-Identifier: Apache-2.0
"""What a real broker says about a queue URI it cannot parse."""

from __future__ import annotations

import re

__all__ = ["uri_problem"]

_SCHEME = "bmq://"
_DOMAIN = re.compile(r"[^-a-zA-Z0-9._]")
_TIER = re.compile(r"[^-a-zA-Z0-9]")
_NAME = re.compile(r"[^-a-zA-Z0-9_.]")
_MAX_QUEUE = 64


def uri_problem(uri: str) -> str:
    """Return the text for a bad queue URI; "" when it finds nothing wrong."""
    if not uri.startswith(_SCHEME):
        return f'Invalid scheme: uri must start with "{_SCHEME}"'
    authority, slash, path = uri[len(_SCHEME) :].partition("/")
    domain, has_tier, tier = authority.partition(".~")
    if not domain:
        return "Missing domain"
    if bad := _DOMAIN.search(domain):
        return f"Domain parsing failed: unsupported char (int){ord(bad[0])}"
    if has_tier and not tier:
        return "Empty tier"
    if bad := _TIER.search(tier):
        return f"Tier parsing failed: unsupported char (int){ord(bad[0])}"
    queue, question, query = path.partition("?")
    if not slash or not queue:
        return "Missing queue"
    if bad := _NAME.search(queue):
        return f"Path parsing failed: unsupported char (int){ord(bad[0])}"
    if question:
        key, equals, app_id = query.partition("=")
        if not equals:
            return "Query parsing failed: no separator found"
        if not app_id:
            return 'Query parsing failed: missing value after "="'
        if key != "id":
            return f'Query parsing failed: unsupported query "{key}"'
        if bad := _NAME.search(app_id):
            return f"Query parsing failed: unsupported char (int){ord(bad[0])}"
    if len(queue) > _MAX_QUEUE:
        return f"Queue name exceeds {_MAX_QUEUE} characters"
    return ""
