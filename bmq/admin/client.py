# SPDX-License-Identifier: Apache-2.0
"""The admin client: a broker's admin commands as calls."""

from __future__ import annotations

import asyncio
import math
import ssl as ssl_module
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any, cast

from msgspec import Struct, convert
from msgspec.structs import replace

from bmq import _checks
from bmq._json import orjson
from bmq._live import live
from bmq._logging import Log
from bmq.admin.connection import AdminConnection
from bmq.admin.results import (
    Client,
    Cluster,
    ClusterStatus,
    ClusterTopology,
    Depth,
    DomainInfo,
    DomainSummary,
    Internals,
    MessagePage,
    PartitionStorage,
    Purged,
    QueueStatistics,
    Standing,
    Statistics,
    StoredMessage,
    reading,
)
from bmq.admin.watch import ClusterView, alone, cluster_view
from bmq.client.address import Address, BrokerAccess, find_broker
from bmq.client.connect import check_clear_text, check_connecting
from bmq.client.options import CredentialsSource
from bmq.errors import (
    AdminError,
    ConnectionFailed,
    InvalidURI,
    ProtocolError,
    RequestTimeout,
    StateError,
    UsageError,
)
from bmq.wire.printable import printable
from bmq.wire.uri import QueueUri

__all__ = ["Admin", "QueueAdmin", "connect"]

logger = Log("bmq.admin")

_JSON = "ENCODING JSON_COMPACT"
# Longer commands are mistakes without a use at the broker, and longer names of processes too.
_LONGEST_COMMAND = 10_000
_LONGEST_NAME = 1000
# The broker's answer to a request for statistics just after earlier statistics.
_TOO_OFTEN = "too often"
_PAUSE = 0.1
# Seconds for which a view of a cluster is used: a queue's primary changes when a node fails.
_FRESH = 1.0
# Seconds for the nodes other than the first to answer, and seconds for which an absent node is left alone.
_OTHERS = 2.0
_LEFT_ALONE = 5.0


@live
class connect:
    """Connect to a broker for admin commands.

    ``async with bmq.admin.connect(uri) as admin`` or ``admin = await bmq.admin.connect(uri)``.

    Args:
        broker: as for :class:`bmq.connect`. Of several addresses the first that answers is used; commands
            about a queue go to the queue's primary, if one of the addresses is the primary's.
        credentials: as for :class:`bmq.connect`.
        ssl: a context for TLS; ``tcps://`` without a context uses the system's defaults.
        server_hostname: the name to verify the broker's certificate against, if not the address's host.
        timeout: seconds for connecting, all addresses together, and for each command.
        process_name: name of this process in the broker's log.

    Raises:
        ConnectionFailed: no address answered.
        NegotiationError, AuthenticationError: the broker refused.
        InvalidURI: the address is not legal.

    Cancelling the call closes every opened connection.
    """

    def __init__(
        self,
        broker: str | None = None,
        *,
        credentials: CredentialsSource | None = None,
        ssl: ssl_module.SSLContext | None = None,
        server_hostname: str | None = None,
        timeout: float = 30.0,
        process_name: str = "bmq admin",
    ) -> None:
        timeout = _checks.seconds("timeout", timeout, positive=True)
        process_name = _checks.text("process_name", process_name, longest=_LONGEST_NAME)
        check_connecting(credentials, ssl, server_hostname)
        target = find_broker(broker)
        if credentials is not None and ssl is None:
            check_clear_text(credentials, target.addresses)
        access = target._replace(credentials=credentials, ssl=ssl, server_hostname=server_hostname)
        self._admin = Admin(access, timeout, process_name)

    def __await__(self) -> Generator[Any, None, Admin]:
        return self._admin._start().__await__()

    async def __aenter__(self) -> Admin:
        return await self

    async def __aexit__(self, *_: object) -> None:
        await self._admin.close()


@live
class Admin:
    """A broker's admin commands. Created by :class:`bmq.admin.connect`.

    Every method asks the broker anew. All methods raise:

    - :class:`bmq.errors.AdminError`: the broker did not carry the command out; the text is the broker's.
    - :class:`bmq.RequestTimeout`: the broker did not answer in time.
    - :class:`bmq.ConnectionFailed`: the connection was lost. The command may have been carried out and is not
      repeated; the next command connects again.
    - :class:`bmq.ProtocolError`: the answer cannot be understood.

    Cancelling a call drops the answer; the broker may carry the command out nevertheless.
    """

    def __init__(self, access: BrokerAccess, timeout: float, process_name: str) -> None:
        self._access = access
        self._timeout = timeout
        self._process_name = process_name
        self._connection: AdminConnection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        # The clusters at the time of the latest look; empty if not asked, because the broker is alone.
        self._clusters: list[ClusterView] = []
        self._looked = -math.inf
        self._others: dict[Address, Admin] = {}
        self._silent: dict[Address, float] = {}
        #: The address of the broker that this client is connected to.
        self.broker = str(self._access.addresses[0])

    # life

    async def _start(self) -> Admin:
        await self._connected()
        return self

    async def close(self) -> None:
        """End the connection; idempotent."""
        self._closed = True
        connection, self._connection = self._connection, None
        others, self._others = self._others, {}
        try:
            if connection is not None:
                await connection.close()
        finally:
            await asyncio.gather(*(other.close() for other in others.values()))

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _connected(self) -> AdminConnection:
        async with self._connecting:
            if self._closed:
                raise StateError("the admin client is closed")
            present = self._connection
            if present is not None and present.lost is None:
                now = asyncio.get_running_loop().time()
                if present.expires is None or now < present.expires:
                    return present
                await present.close()
            present = await AdminConnection.open(self._access, self._process_name, self._timeout)
            self._connection = present
            self.broker = str(present.address)
            self._looked = -math.inf
            return present

    @asynccontextmanager
    async def _within(self, seconds: float, failed: str) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            if isinstance(error, ConnectionFailed | RequestTimeout):
                raise
            raise RequestTimeout(f"{self.broker} {failed} within {seconds:.2g} s") from None

    # commands

    async def command(self, text: str, *, timeout: float | None = None) -> str:
        """Have the broker carry out any command, and return the printed answer.

        The answer is not parsed: a failure shows only in the text. ``HELP`` lists the broker's commands.

        Args:
            text: one line in the broker's own language.
            timeout: seconds to wait; if None, the client's timeout.

        Raises:
            UsageError: the text is empty, or has several lines.
        """
        text = _checks.text("text", text, longest=_LONGEST_COMMAND)
        if not text.strip() or "\n" in text or "\r" in text:
            raise UsageError(f"an admin command must be one line of text, not {_checks.shown(text)}")
        timeout = _checks.timeout(timeout)
        async with self._within(self._timeout if timeout is None else timeout, f"did not answer {text!r}"):
            connection = await self._connected()
            return await connection.ask(text)

    async def query(self, text: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Have the broker carry out any command, and return the answer decoded from JSON.

        Args:
            text: the command, without ``ENCODING``.
            timeout: seconds to wait; if None, the client's timeout.

        Returns:
            The answer, with the names of the broker's command schema: an object with a single member, named
            after the kind of result.

        Raises:
            AdminError: the broker did not carry the command out.
            UsageError: the text is empty, or has several lines.
        """
        text = _checks.text("text", text, longest=_LONGEST_COMMAND - len(_JSON) - 1)
        printed = await self.command(f"{_JSON} {text}", timeout=timeout)
        try:
            answer = orjson.loads(printed)
        except ValueError:
            # An unknown command is answered in plain text, despite the encoding in the request.
            raise _refused(text, printed.strip()) from None
        if not isinstance(answer, dict) or not answer:
            raise ProtocolError(f"{text!r} was answered with {printed[:80]!r}", field="adminCommandResponse")
        result = cast("dict[str, Any]", answer)
        if (failure := _failure_of(result)) is not None:
            raise _refused(text, failure)
        return result

    async def _ask(self, text: str, *kinds: str) -> Any:
        """Return the member of an answer that the command schema names for the command.

        A broker that routes a command to other nodes answers with one result for each node. The parts of a
        purge are joined, and the answer of any node stands for a success of all.

        Raises:
            AdminError: a node did not carry out the command.
            ProtocolError: the answer has another kind.
        """
        answer = await self.query(text)
        results = [answer]
        if "responses" in answer:
            with reading("responses"):
                routed = convert(answer["responses"], list[_Routed])
            results = [each.result for each in routed]
            failures = [(each.source_node_description, _failure_of(each.result)) for each in routed]
            if refusals := [f"{node}: {failure}" for node, failure in failures if failure is not None]:
                raise _refused(text, "; ".join(refusals))
        parts = [result[kind] for result in results for kind in kinds if kind in result]
        if not parts:
            found = printable(", ".join(answer))
            raise ProtocolError(f"{text!r} was answered with {found}", field=kinds[0])
        if kinds != ("purgedQueues",):
            return parts[0]
        with reading("purgedQueues"):
            return [each for part in parts for each in part.get("queues", ())]

    async def _explained(self, text: str, kind: str, gap: str) -> Any:
        """Ask a broker that may lack the queue; the error names the gap in its knowledge, if any."""
        try:
            return await self._ask(text, kind)
        except AdminError as error:
            if not gap:
                raise
            raise _told(f"{error}; {gap}", error) from error

    # the other nodes

    async def _look(self, *, whole: bool = False) -> None:
        """Look at this broker's clusters: a single command without other nodes.

        Args:
            whole: whether to ask for the view of a cluster also without other nodes.
        """
        now = asyncio.get_running_loop().time
        if now() - self._looked < _FRESH and (self._clusters or not whole):
            return
        clusters = await self.clusters()
        whole = whole or any(not alone(each) for each in clusters)
        self._clusters = [await cluster_view(self, each) for each in clusters] if whole else []
        self._looked = now()

    @property
    def _views(self) -> list[ClusterView]:
        """The clusters with other nodes."""
        return [view for view in self._clusters if not view.alone]

    def _standing(self, uri: str) -> Standing:
        """Return the place of this broker in the cluster of a queue."""
        if not self._clusters:
            return Standing(self.broker, "", True, False, None, None)

        def rank(view: ClusterView) -> tuple[bool, bool, bool]:
            """A node that knows the queue, otherwise a proxy, otherwise any node."""
            return view.proxy or uri not in view.partitions, not view.proxy, view.alone

        return min(self._clusters, key=rank).standing(uri)

    @property
    def _proxy_gap(self) -> str:
        """Why this broker, only a proxy, knows no domains; empty for a broker with storage."""
        stores = any(view.partitions if view.alone else not view.proxy for view in self._clusters)
        return self._standing("").gap if self._views and not stores else ""

    async def _look_elsewhere(self, address: Address) -> Admin | None:
        now = asyncio.get_running_loop().time
        if now() < self._silent.get(address, 0.0):
            return None
        other = self._others.get(address)
        if other is None:
            access = self._access._replace(addresses=[address])
            other = self._others[address] = Admin(access, self._timeout, self._process_name)
        try:
            async with asyncio.timeout(min(_OTHERS, self._timeout)):
                await other._look()
        except (TimeoutError, ConnectionFailed, AdminError, ProtocolError) as error:
            logger.info("%s does not answer, and is left out: %r", address, error)
            self._silent[address] = now() + _LEFT_ALONE
            return None
        return other

    async def _nodes(self) -> list[Admin]:
        """Look at the brokers of all addresses; return those that answer, this one first."""
        await self._look()
        if len(self._access.addresses) == 1 or not self._views:
            return [self]
        elsewhere = [address for address in self._access.addresses if str(address) != self.broker]
        others = await asyncio.gather(*map(self._look_elsewhere, elsewhere))
        return [self, *(each for each in others if each is not None)]

    async def _holder(self, uri: str) -> tuple[Admin, Standing]:
        """Return the primary of a queue with its standing; otherwise a node, and at last this broker."""
        await self._look()
        mine = self._standing(uri)
        if mine.is_primary or len(self._access.addresses) == 1:
            return self, mine
        standings = [(node, node._standing(uri)) for node in await self._nodes()]
        return min(
            standings, key=lambda each: (not each[1].is_primary, each[1].is_proxy, each[1].primary is None)
        )

    async def _member(self) -> Admin:
        """Return this broker, or for a proxy a node of the cluster, if there is one."""
        return min(await self._nodes(), key=lambda node: bool(node._proxy_gap))

    async def gap(self) -> str:
        """Return why answers about *all* queues are incomplete, as text; empty if complete.

        Answers are complete if the primaries of all partitions with queues are among the addresses and
        answer.
        """
        clusters: dict[str, list[ClusterView]] = {}
        for node in await self._nodes():
            for view in node._views:
                clusters.setdefault(view.cluster, []).append(view)
        return "; ".join(filter(None, map(_gap, clusters.values())))

    # clusters

    async def clusters(self) -> tuple[Cluster, ...]:
        """Return the broker's clusters, with their nodes."""
        return Cluster._read_all(await self._ask("CLUSTERS LIST", "clusterList"), "clusters")

    async def cluster_status(self, name: str) -> ClusterStatus:
        """Return the state of a cluster: nodes, leader, partitions."""
        return ClusterStatus._read(await self._status(name))

    async def _status(self, name: str) -> Any:
        command = f"CLUSTERS CLUSTER {_word(name, 'cluster')} STATUS"
        return await self._ask(command, "clusterStatus", "clusterProxyStatus")

    async def topology(self, name: str) -> ClusterTopology:
        """Return the domains and queues of a cluster."""
        command = f"CLUSTERS CLUSTER {_word(name, 'cluster')} QUEUEHELPER"
        return ClusterTopology._read(await self._ask(command, "clusterQueueHelper"))

    async def cluster_storage(self, name: str) -> tuple[PartitionStorage, ...]:
        """Return the partitions of a cluster, with files and queues, as stored by the answering broker."""
        command = f"CLUSTERS CLUSTER {_word(name, 'cluster')} STORAGE SUMMARY"
        return PartitionStorage._read_all(await self._ask(command, "clusterStorageSummary"), "fileStores")

    # domains

    async def domains(self) -> tuple[DomainSummary, ...]:
        """Return the domains with queues, of all clusters, by name."""
        member = await self._member()
        found = [
            domain
            for cluster in await member.clusters()
            for domain in (await member.topology(cluster.name)).domains
        ]
        return tuple(sorted(found, key=lambda domain: domain.name))

    async def domain(self, name: str) -> DomainInfo:
        """Return a domain's configuration, the use of its quota, and its queues."""
        return DomainInfo._read(await self._ask_member(name, "INFOS", "domainInfo"))

    async def _ask_member(self, domain: str, words: str, kind: str) -> Any:
        member = await self._member()
        command = f"DOMAINS DOMAIN {_word(domain, 'domain')} {words}"
        return await member._explained(command, kind, member._proxy_gap)

    async def reconfigure(self, name: str) -> None:
        """Have the broker read a domain's configuration anew.

        With several addresses of a cluster, each node that answers reads its own file.

        Raises:
            AdminError: a broker refused, and keeps its configuration; the other brokers were asked too.
        """
        command = f"DOMAINS RECONFIGURE {_word(name, 'domain')}"
        nodes = await self._nodes() if len(self._access.addresses) > 1 else [self]
        refusals: list[AdminError] = []
        for node in nodes:
            try:
                await node._ask(command, "success")
            except AdminError as error:
                refusals.append(error if len(nodes) == 1 else _told(f"{node.broker}: {error}", error))
        if refusals:
            raise _told("; ".join(map(str, refusals)), *refusals)

    async def clear_caches(self) -> None:
        """Have the broker read files and redirections of domains anew the next time.

        Loaded domains keep their settings.
        """
        await self._ask("DOMAINS RESOLVER CACHE_CLEAR ALL", "success")
        await self._ask("CONFIGPROVIDER CACHE_CLEAR ALL", "success")

    async def purge_domain(self, name: str) -> tuple[Purged, ...]:
        """Delete all messages of all queues of a domain, and return the deleted amounts, by queue.

        With several addresses of a cluster, each queue is purged at its primary.

        Raises:
            AdminError: a queue was not purged; on a single broker, the remaining queues were purged.
        """
        name = _word(name, "domain")
        if len(await self._nodes()) > 1:
            await self.domain(name)  # raises if the domain does not exist
            purges = [
                self.queue(uri).purge() for uri in await self.queues() if uri.startswith(f"bmq://{name}/")
            ]
            return tuple([each for purge in purges for each in await purge])
        return _purged(f"DOMAINS DOMAIN {name} PURGE", await self._ask_member(name, "PURGE", "purgedQueues"))

    # queues

    async def queues(self) -> tuple[str, ...]:
        """Return the URIs of all queues, of all clusters, sorted."""
        found: set[str] = set()
        for node in await self._nodes():
            for cluster in await node.clusters():
                found.update((await node.topology(cluster.name)).queues)
        return tuple(sorted(found))

    def queue(self, uri: str) -> QueueAdmin:
        """Return the commands about one queue; sends nothing.

        Args:
            uri: the queue. An application in ``?id=`` is the default of calls with an application.

        Raises:
            InvalidURI: the text is not a queue's URI.
        """
        return QueueAdmin(QueueUri.parse(uri), self)

    async def statistics(self) -> Statistics:
        """Return the statistics by queue: of the broker, or of the primaries with several addresses.

        A broker makes new statistics for each call, but not too often: the call repeats a refused request
        until the broker answers. The statistics of a new queue may be a minute late;
        :meth:`QueueAdmin.depth` is always up to date.
        """
        nodes = await self._nodes()
        if len(nodes) == 1:
            return await self._statistics()
        made = await asyncio.gather(*(node._statistics() for node in nodes))
        chosen: dict[str, QueueStatistics] = {}
        known = ((node, uri) for node in nodes for view in node._views for uri in view.partitions)
        reached = {uri for node, uri in known if node._standing(uri).is_primary}
        for node, statistics in zip(nodes, made, strict=True):
            for each in statistics.queues:
                if each.uri not in reached or node._standing(each.uri).is_primary:
                    chosen.setdefault(each.uri, each)
        queues = sorted(chosen.values(), key=lambda each: each.uri)
        return Statistics(max(each.time for each in made), tuple(queues))

    async def _statistics(self) -> Statistics:
        async with self._within(self._timeout, "returned no statistics"):
            while True:
                try:
                    return Statistics._read(await self._ask("STAT SHOW", "stats"))
                except AdminError as error:
                    if _TOO_OFTEN not in error.broker_message:
                        raise
                await asyncio.sleep(_PAUSE)


class QueueAdmin:
    """The admin commands about one queue. Created by :meth:`Admin.queue`.

    The queue's primary answers, if its address is known to the client; otherwise the broker of the client's
    connection. :meth:`standing` names the answering broker. The methods raise the errors of :class:`Admin`.

    Attributes:
        uri: the queue, without an application.
        app_id: the application in the URI; empty without one.
    """

    def __init__(self, uri: QueueUri, admin: Admin) -> None:
        self._admin = admin
        self.domain = uri.qualified_domain
        self.uri = uri.canonical
        self._prefix = f"DOMAINS DOMAIN {self.domain} QUEUE {uri.queue}"
        self._internals = f"{self._prefix} INTERNALS"
        self.app_id = uri.app_id

    async def standing(self) -> Standing:
        """Return the cluster role of the broker that answers for this queue."""
        return (await self._admin._holder(self.uri))[1]

    async def _ask(self, command: str, kind: str) -> Any:
        holder, standing = await self._admin._holder(self.uri)
        explains = standing.is_proxy or standing.primary is not None
        return await holder._explained(command, kind, standing.gap if explains else "")

    async def internals(self) -> Internals:
        """Return the queue's clients, their subscriptions, and unconfirmed messages.

        Another node of a cluster appears as a client instead of its own clients. These are in ``behind`` of
        the node, if the node's address was given and the node answers.

        Raises:
            ProtocolError: the answer cannot be understood. A client can cause this for a queue: brokers print
                expressions without escapes, and a text that imitates the broker's is refused.
        """
        found = Internals._read(await self._ask(self._internals, "queueInternals"))
        holder, _ = await self._admin._holder(self.uri)
        others = [node for node in await self._admin._nodes() if node is not holder]
        nodes = {node._standing(self.uri).node: node for node in others}

        async def with_clients(client: Client) -> Client:
            node = nodes.get(client.description)
            return client if node is None else replace(client, behind=await self._clients_of(node))

        return replace(found, clients=tuple(await asyncio.gather(*map(with_clients, found.clients))))

    async def _clients_of(self, node: Admin) -> tuple[Client, ...]:
        try:
            async with asyncio.timeout(_OTHERS):
                return Internals._read(await node._ask(self._internals, "queueInternals")).clients
        except (TimeoutError, ConnectionFailed, AdminError, ProtocolError) as error:
            logger.info("%s does not report its clients: %r", node, error)
            return ()

    async def depth(self) -> Depth:
        """Return how many messages and bytes the queue holds, by application too."""
        return Depth._read(await self._ask(self._internals, "queueInternals"))

    async def statistics(self) -> QueueStatistics | None:
        """Return the queue's statistics; None without statistics."""
        counted = await self._admin.statistics()
        return next((each for each in counted.queues if each.uri == self.uri), None)

    async def messages(self, offset: int = 0, count: int = 100, *, app_id: str | None = None) -> MessagePage:
        """Return a page of the stored messages, without taking them.

        Args:
            offset: number of messages to skip; negative counts from the end.
            count: maximum number of messages to return.
            app_id: only messages that wait for this application; None for the application in the URI, or all.

        Raises:
            UsageError: the count is not positive.
        """
        offset = _checks.integer("offset", offset, -_checks.INT32_MAX, _checks.INT32_MAX)
        count = _checks.integer("count", count, 1, _checks.INT32_MAX)
        app = self._app(app_id)
        command = f"{self._prefix} LIST {app + ' ' if app else ''}{offset} {count}"
        return MessagePage._read(await self._ask(command, "queueContents"))

    async def all_messages(
        self, *, page: int = 1000, app_id: str | None = None
    ) -> AsyncIterator[StoredMessage]:
        """Iterate over all stored messages, a page at a time.

        The queue can change meanwhile: after a removal, later messages move up, and the iteration may skip
        some.
        """
        page = _checks.integer("page", page, 1, _checks.INT32_MAX)
        offset = 0
        while True:
            found = await self.messages(offset, page, app_id=app_id)
            for message in found.messages:
                yield message
            offset += len(found.messages)
            if not found.messages or offset >= found.total:
                return

    async def purge(self, app_id: str | None = None) -> tuple[Purged, ...]:
        """Delete messages, and return the number.

        Args:
            app_id: only messages of this application; None for the application in the URI, or all.
        """
        command = f"{self._prefix} PURGE {self._app(app_id) or '*'}"
        return _purged(command, await self._ask(command, "purgedQueues"))

    def _app(self, app_id: str | None) -> str:
        chosen = self.app_id if app_id is None else _checks.text("app_id", app_id)
        return _word(chosen, "appId") if chosen else ""


class _Routed(Struct, rename="camel"):
    """The answer of another node, to which the broker routed a command."""

    source_node_description: str
    result: dict[str, Any]


def _purged(command: str, queues: Any) -> tuple[Purged, ...]:
    """Return the deleted amounts.

    Raises:
        AdminError: a queue was not purged.
    """
    with reading("purgedQueues"):
        failures = [str(each["error"]["message"]) for each in queues if "error" in each]
        done = convert([each["queue"] for each in queues if "error" not in each], tuple[Purged, ...])
    if failures:
        raise _refused(command, "; ".join(failures))
    return done


def _failure_of(result: dict[str, Any]) -> str | None:
    """Return the broker's text if the result is a failure; None otherwise."""
    if "error" not in result:
        return None
    error = result["error"]
    return str(cast("dict[str, Any]", error).get("message", "") if isinstance(error, dict) else error)


def _word(text: str, what: str) -> str:
    """Return a word of a command.

    Raises:
        InvalidURI: the text has several words, or none.
    """
    text = _checks.text(what, text, longest=_LONGEST_NAME)
    if not text or text.split() != [text]:
        raise InvalidURI(f"{text!r} cannot be the name of a {what}: it is empty or has spaces")
    return text


def _refused(command: str, message: str) -> AdminError:
    """Return the error of a command that a broker did not carry out."""
    return AdminError(
        f"the broker did not execute {command!r}: {printable(message)}",
        command=command,
        broker_message=message,
    )


def _told(text: str, *errors: AdminError) -> AdminError:
    """Return an error with another text, for one refusal or several."""
    reasons = "; ".join(each.broker_message for each in errors)
    return AdminError(text, command=errors[0].command, broker_message=reasons)


def _gap(views: list[ClusterView]) -> str:
    """Return why some brokers' answers about all queues of a cluster are incomplete; empty for complete."""
    nodes = [view for view in views if not view.proxy]
    if not nodes:
        return views[0].standing("").gap
    asked = {view.node for view in nodes}
    missing = {primary for view in nodes for primary in view.primaries} - asked
    if names := ", ".join(sorted(name for name in missing if name is not None)):
        covered = ", ".join(sorted(asked))
        return f"{names} is the primary of some queues and was not queried: this answer covers {covered} only"
    if missing:
        return (
            f"some queues of cluster {printable(nodes[0].cluster)} have no primary at the moment: figures "
            "may be wrong"
        )
    return ""
