# SPDX-License-Identifier: Apache-2.0
"""The post of a caller awaiting each post before the next.

The problem: the caller waits for every step between the call and the write, and between the arrival of the
acknowledgement and the caller's next turn. On the usual way a post enters the window, waits in the outbox for
the end of the turn of the event loop, is encoded as an event of one message, and the acknowledgement is
framed, decoded and looked up. Each step serves posts travelling together, and is useless for a lone post.

A lone post has three steps instead:

- :meth:`LonePost.begin` returns the bytes to write at once. The caller writes them.
- :meth:`LonePost.keep` puts the post into the window, while the broker works.
- :attr:`LonePost.awaited` is the accepting event, byte by byte: the broker has no choice. The caller compares
  received bytes with the event, and calls :meth:`LonePost.finish` if equal.

Invariants:

- A lone post is a post of the window like any other: sent again after a reconnect, expired in time, and
  cancelled with the queue. A different acknowledgement, or an acknowledgement in pieces, takes the usual way.
- No post overtakes another: a lone post begins only while the window and the outbox are empty. Confirmations
  may wait, and go out in front.
- After the outcome, the object holds neither the queue nor the token. If the outcome came on the usual way,
  the object holds both until the next lone post or the end of the connection.
- The bytes are compared only where an event may begin. The same bytes inside the payload of a message arrive
  while the framer holds the beginning of that message.

Rejected designs: a flag set at the end of each turn with a single post in the window, at the cost of a call
in every turn of every session (now :attr:`Posts.one_by_one`, set where a post enters the window); a new batch
for each lone post (lone posts never coincide, so the object serves as the batch); the whole expected event
encoded for each post (only the GUID changes between the posts to a queue).
"""

from __future__ import annotations

from typing import cast

from bmq.errors import AckStatus
from bmq.protocol.client.events import Outcome
from bmq.protocol.client.outbox import Outbox
from bmq.protocol.client.ports import PostTarget
from bmq.protocol.client.posts import Batch, Posts
from bmq.protocol.client.queue import QueueCore, QueueState, ServiceState
from bmq.protocol.client.redelivery import Confirmations
from bmq.protocol.client.stalls import Stalls
from bmq.protocol.framing import Framer
from bmq.protocol.heartbeat import Heartbeat
from bmq.protocol.liveness import Answers, Liveness
from bmq.wire.ack import around_acceptance
from bmq.wire.put import LARGE, Outgoing, encode_put_event

__all__ = ["LonePost"]

_OPEN = QueueState.OPEN
_IN_SERVICE = ServiceState.IN_SERVICE
_SUCCESS = AckStatus.SUCCESS
# Stands for the queue in the absence of a lone post.
_NO_QUEUE = cast("PostTarget", None)
_NOTHING = b"", b""


class LonePost(Batch):
    """The lone post of a session: the post in flight, if any, and the preparation of the next.

    Args:
        posts: the window.
        outbox: the pending output.
        confirms: the pending confirmations.
        stalls: the causes of the session's present stalls.

    Attributes:
        awaited: the event accepting the post in flight; None without a post in flight.
    """

    __slots__ = (
        "_answers",
        "_around",
        "_confirms",
        "_framer",
        "_guid",
        "_heartbeat",
        "_liveness",
        "_outbox",
        "_posts",
        "_q_id",
        "_stalls",
        "awaited",
    )

    def __init__(self, posts: Posts, outbox: Outbox, confirms: Confirmations, stalls: Stalls) -> None:
        self._posts = posts
        self._outbox = outbox
        self._confirms = confirms
        self._stalls = stalls
        # Parts of the connection; None without a connection.
        self._framer: Framer | None = None
        self._heartbeat: Heartbeat | None = None
        self._liveness: Liveness | None = None
        self._answers: Answers | None = None
        self.awaited: bytes | None = None
        # The GUID of the post in flight; the queue of the latest lone post; and the two parts, before and
        # after the GUID, of the event accepting a post to this queue.
        self._guid: bytes
        self._q_id: int
        self._around: tuple[bytes, bytes]
        self._release()
        self.sent = True
        self.many = False

    def channel_up(
        self, framer: Framer, heartbeat: Heartbeat, liveness: Liveness | None, answers: Answers | None
    ) -> None:
        """Use a connection."""
        self._framer, self._heartbeat, self._liveness, self._answers = framer, heartbeat, liveness, answers

    def channel_down(self) -> None:
        """Stop using the connection; an acknowledgement on the next connection takes the usual way."""
        self._framer = self._heartbeat = self._liveness = self._answers = self.awaited = None
        if not self._posts.batches:
            self._release()

    def _release(self) -> None:
        """Drop the references to the last post."""
        self.queue, self.token, self._guid = _NO_QUEUE, None, b""
        self._q_id, self._around = -1, _NOTHING

    def begin(self, queue: QueueCore, message: Outgoing) -> list[bytes] | None:
        """Admit a post; return the bytes to write, or None if the post has to take the usual way.

        :meth:`keep` must follow. None has no effect.
        """
        posts, outbox = self._posts, self._outbox
        if (
            posts.batches
            or outbox.runs
            or outbox.events
            or self._framer is None
            or queue.state is not _OPEN
            or not queue.writable
            or queue.service.state is not _IN_SERVICE
        ):
            return None
        try:
            if len(message[1]) < LARGE and not self._confirms.waiting:
                data = [encode_put_event(queue.q_id, message)]
            else:
                data = outbox.encode_one(queue.q_id, message)
        except Exception:
            # An unencodable post gets its outcome on the usual way.
            return None
        queue.unacked += 1
        return data

    def keep(self, queue: QueueCore, message: Outgoing, token: object, now: float) -> None:
        """Keep a post from :meth:`begin` in the window; see :meth:`Posts.post` for the arguments."""
        posts = self._posts
        guid = message[0]
        self.queue = queue
        self.token = token
        self.posted = now
        self.left = 1
        posts.last_batch = number = posts.last_batch + 1
        posts.batches[number] = self
        posts.entries[guid] = message, number, 0
        size = len(message[1])
        posts.bytes += size
        queue.unacked_bytes += size
        if posts.deadline is None:
            posts.watch(now)
        if queue.q_id != self._q_id:
            self._q_id, self._around = queue.q_id, around_acceptance(queue.q_id)
        before, after = self._around
        self._guid = guid
        self.awaited = before + guid + after

    def finish(self, now: float) -> Outcome | None:
        """Process the arrived :attr:`awaited`; return the outcome.

        Returns:
            None if the bytes have to take the usual way, or the post had another outcome before.
        """
        framer = self._framer
        if framer is None or framer.buffered or framer.bulky or self._stalls.causes:
            return None
        self.awaited = None
        posts, guid, queue, token = self._posts, self._guid, self.queue, self.token
        entry = posts.entries.get(guid)
        # After an outcome on the usual way, the caller may have posted the same GUID again, on the usual way.
        if entry is None or posts.batches[entry[1]] is not self:
            return None
        del posts.entries[guid], posts.batches[entry[1]]
        self.queue, self.token = _NO_QUEUE, None
        size = len(entry[0][1])
        posts.bytes -= size
        queue.answered_at = now
        queue.unacked -= 1
        queue.unacked_bytes -= size
        queue.counts.answered(1, size, now - self.posted)
        if self._heartbeat is not None:
            self._heartbeat.heard = True
        if self._liveness is not None:
            self._liveness.heard = now
        if self._answers is not None:
            self._answers.answered = now
            self._answers.received = 0
        return token, 0, guid, _SUCCESS, queue
