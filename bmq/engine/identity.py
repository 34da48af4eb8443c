# SPDX-License-Identifier: Apache-2.0
"""This client's identity in the negotiation."""

from __future__ import annotations

from bmq import _world
from bmq._version import __version__
from bmq.wire.control import ClientIdentity, ClientLanguage, ClientType, GuidInfo
from bmq.wire.guid import GuidGenerator, client_id_from

__all__ = ["introduce"]

_FEATURES = "PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX"


def introduce(process_name: str, user_agent: str = "") -> tuple[ClientIdentity, GuidGenerator]:
    """Return the identity of a new session and the matching GUID generator.

    Args:
        process_name: name of this process.
        user_agent: name of the software that wraps this client; empty for none.
    """
    session_id = next(_world.current().session_ids)
    wall = _world.time_ns()
    host = _world.hostname()
    guids = GuidGenerator(client_id_from(host, wall, _world.pid(), session_id))
    identity = ClientIdentity(
        protocol_version=1,
        sdk_version=_version_number(__version__),
        client_type=ClientType.E_TCPCLIENT,
        process_name=process_name,
        pid=_world.pid(),
        session_id=session_id,
        host_name=host,
        features=_FEATURES,
        sdk_language=ClientLanguage.E_UNKNOWN,
        guid_info=GuidInfo(client_id=guids.client_id_text, nano_seconds_from_epoch=wall),
        user_agent=f"{user_agent} bmq-py:{__version__}".lstrip(" "),
    )
    return identity, guids


def _version_number(version: str) -> int:
    major, minor, patch = (
        int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")[:3]
    )
    return major * 10000 + minor * 100 + patch
