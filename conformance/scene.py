# SPDX-License-Identifier: Apache-2.0
"""Cases as lists of steps: sessions with names post, receive, confirm and leave one queue.

A row of a table ends with its steps, for example ``P.writes(), A.reads(), P.posts(1), A.gets(1)``. A
payload is bytes or a number, which stands for its digits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec

from bmq.wire.control import Disconnect, Subscription
from bmq.wire.properties import PropertyInput
from conformance.bench import Bench
from conformance.case import check
from conformance.peer import Peer, subscription

__all__ = ["A", "B", "C", "P", "Scene", "Step", "play"]

Arguments = ParamSpec("Arguments")
Step = Callable[["Scene"], Awaitable[None]]


class Scene:
    """The sessions of a case by name, its queue, and the GUIDs of its messages by payload."""

    def __init__(self, bench: Bench, kind: str) -> None:
        self.bench = bench
        self.uri = bench.uri(kind)
        self.peers: dict[str, Peer] = {}
        self.opened: dict[tuple[str, str], dict[str, Any]] = {}
        self.guids: dict[bytes, bytes] = {}

    def named(self, app: str) -> str:
        """The URI of the queue, or of one of its applications."""
        return f"{self.uri}?id={app}" if app else self.uri


async def play(bench: Bench, *steps: Step, kind: str = "priority") -> Scene:
    """Take the steps one after the other, with a new queue in a domain of a kind; return the scene."""
    scene = Scene(bench, kind)
    for step in steps:
        await step(scene)
    return scene


def _step(
    function: Callable[Concatenate[Actor, Scene, Arguments], Awaitable[None]],
) -> Callable[Concatenate[Actor, Arguments], Step]:
    """Make a method that returns a step of one that takes it."""

    def make(actor: Actor, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Step:
        return lambda scene: function(actor, scene, *arguments, **named)

    return make


def _bytes(payload: int | bytes) -> bytes:
    return payload if isinstance(payload, bytes) else b"%d" % payload


class Actor:
    """A session, and the steps that it can take.

    Args:
        name: its name in the scene.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def peer(self, scene: Scene) -> Peer:
        """The connection of the session."""
        return scene.peers[self.name]

    # ---- queues

    async def _open(self, scene: Scene, *subscriptions: Subscription, app: str = "", **how: Any) -> None:
        if self.name not in scene.peers:
            scene.peers[self.name] = await scene.bench.client()
        scene.opened[self.name, app] = how
        await self.peer(scene).open(scene.named(app), **how)
        if subscriptions:
            await self.peer(scene).configure(0, *subscriptions, app_id=app or "__default")

    @_step
    async def opens(self, scene: Scene, /, *subscriptions: Subscription, **how: Any) -> None:
        """Open the queue, for reading and writing unless told otherwise."""
        await self._open(scene, *subscriptions, **how)

    @_step
    async def reads(
        self, scene: Scene, /, *subscriptions: Subscription, app: str = "", sub_id: int = 1, s_id: int = 1
    ) -> None:
        """Open the queue or an application for reading, with one subscription unless others are given."""
        how: dict[str, Any] = {"app": app, "sub_id": sub_id} if app else {}
        await self._open(scene, *(subscriptions or (subscription(s_id),)), write=False, **how)

    @_step
    async def writes(self, scene: Scene, /) -> None:
        """Open the queue for writing."""
        await self._open(scene, read=False)

    @_step
    async def configures(self, scene: Scene, /, *subscriptions: Subscription, app: str = "__default") -> None:
        """Replace the subscriptions."""
        await self.peer(scene).configure(0, *subscriptions, app_id=app)

    @_step
    async def leaves(self, scene: Scene, /, app: str = "", final: bool = True) -> None:
        """Close the queue as it was opened."""
        await self.peer(scene).close(scene.named(app), final=final, **scene.opened[self.name, app])

    @_step
    async def drops(self, scene: Scene, /) -> None:
        """End the connection; the name is free for a new session."""
        scene.peers.pop(self.name).drop()
        for peer in scene.peers.values():
            await peer.barrier()

    @_step
    async def disconnects(self, scene: Scene, /) -> None:
        """Make the request disconnect."""
        await self.peer(scene).accepted(Disconnect())

    # ---- messages

    @_step
    async def posts(
        self,
        scene: Scene,
        /,
        *payloads: int | bytes,
        again: int | bytes | None = None,
        **properties: PropertyInput,
    ) -> None:
        """Post messages, each with the same properties; ``again`` names an earlier one with their GUID."""
        for payload in map(_bytes, payloads):
            guid = None if again is None else scene.guids[_bytes(again)]
            scene.guids[payload] = self.peer(scene).post(payload, guid=guid, properties=properties or None)

    @_step
    async def posts_x(self, scene: Scene, /, *values: int) -> None:
        """Post messages with a number as the payload and as the property x."""
        for x in values:
            scene.guids[_bytes(x)] = self.peer(scene).post(_bytes(x), properties={"x": x})

    @_step
    async def acks(self, scene: Scene, /, *statuses: int) -> None:
        """Expect acknowledgements."""
        check(await self.peer(scene).statuses(len(statuses)), list(statuses), "statuses")

    @_step
    async def gets(
        self,
        scene: Scene,
        /,
        *payloads: int | bytes,
        s_ids: tuple[int, ...] | None = None,
        again: bool | None = None,
    ) -> None:
        """Expect deliveries in order, each with these sIds, and with or without the flag OUT_OF_ORDER."""
        got = await self.peer(scene).pushes(len(payloads))
        check([each.payload for each in got], list(map(_bytes, payloads)), f"payloads for {self.name}")
        for each in got:
            if s_ids is not None:
                check(sorted(each.push.sub_ids), sorted(s_ids), "sIds")
            if again is not None:
                check(each.again, again, "the flag OUT_OF_ORDER")

    @_step
    async def gets_s_ids(self, scene: Scene, /, *s_ids: int) -> None:
        """Expect deliveries with these sIds in all, in any number of PUSH messages."""
        found: list[int] = []
        while len(found) < len(s_ids):
            found += (await self.peer(scene).push()).push.sub_ids
        check(sorted(found), sorted(s_ids), f"sIds for {self.name}")

    @_step
    async def gets_nothing(self, scene: Scene, /) -> None:
        """Expect no delivery."""
        await self.peer(scene).no_push()

    @_step
    async def confirms(self, scene: Scene, /, *payloads: int | bytes, sub_id: int = 0) -> None:
        """Confirm messages, and wait until the broker has read this."""
        guids = [scene.guids[_bytes(payload)] for payload in payloads]
        self.peer(scene).confirm(*guids, sub_id=sub_id)
        await self.peer(scene).barrier()


#: The sessions of the cases: a producer, and three others.
P, A, B, C = Actor("P"), Actor("A"), Actor("B"), Actor("C")
