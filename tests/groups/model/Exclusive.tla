----------------------------- MODULE Exclusive -----------------------------
(***************************************************************************)
(* The protocol of exclusive groups: bmq/groups/_protocol.py.              *)
(*                                                                         *)
(* Members own buckets. The broker has a data queue, with a subscription   *)
(* of each owner, and a control queue, with reports to the leader, orders  *)
(* to members and the crown. README.md describes the abstractions, the     *)
(* configurations and the results.                                         *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Member,       \* processes
    Buckets,      \* number of buckets, 1 or 2
    Messages,     \* number of messages, all in bucket 1: see README.md
    Joined,       \* members in the group at the start
    Steady,       \* whether a leader has assigned the buckets at the start
    Window,       \* messages delivered to an owner and not handled
    Orders,       \* orders on the way to a member: the latest, and Orders - 1 late ones
    Faults,       \* how often each fault may happen
    AnyClock,     \* whether a leader may take any lease for over; only without Cut and Crash
    Mistake       \* a planted mistake; "none" for the protocol

Bucket == 1..Buckets
Number(b) == IF b = 1 THEN Messages ELSE 0
Block == 8        \* fences of a crown and a bucket

\* The seats of a bucket: Assignment.TRANSITIONS in _protocol.py, compared by test_specification.py.
\* <<state, input, action, next state>>; a missing pair is impossible.
Transitions == {
    <<"ASKED", "ANSWERED", "NOTHING", "READY">>,
    <<"ASKED", "GRANTED", "NOTHING", "ASKED">>,
    <<"ASKED", "RECALLED", "WITHDRAW", "LEAVING">>,
    <<"ASKED", "LOST", "FORGET", "GONE">>,
    <<"READY", "GRANTED", "OPEN", "OPEN">>,
    <<"READY", "RECALLED", "WITHDRAW", "LEAVING">>,
    <<"READY", "LOST", "FORGET", "GONE">>,
    <<"OPEN", "GRANTED", "NOTHING", "OPEN">>,
    <<"OPEN", "RECALLED", "SHUT", "DRAINING">>,
    <<"OPEN", "LOST", "FORGET", "GONE">>,
    <<"DRAINING", "GRANTED", "NOTHING", "DRAINING">>,
    <<"DRAINING", "RECALLED", "NOTHING", "DRAINING">>,
    <<"DRAINING", "DRAINED", "WITHDRAW", "LEAVING">>,
    <<"DRAINING", "LOST", "FORGET", "GONE">>,
    <<"LEAVING", "ANSWERED", "NOTHING", "LEAVING">>,
    <<"LEAVING", "GRANTED", "NOTHING", "LEAVING">>,
    <<"LEAVING", "RECALLED", "NOTHING", "LEAVING">>,
    <<"LEAVING", "WITHDRAWN", "NOTHING", "GONE">>,
    <<"LEAVING", "LOST", "FORGET", "GONE">>
}
Pairs == {<<t[1], t[2]>> : t \in Transitions}
Next_ == [p \in Pairs |-> (CHOOSE t \in Transitions : <<t[1], t[2]>> = p)[4]]

VARIABLES
    life,     \* of a process: absent, up, closing, gone, dead
    conn,     \* on; cut: lost, and the process does not know; off: lost, and the process knows
    inc,      \* number of the connection: <<member, number>> is `who`
    lease,    \* whether the own lease is valid
    era,      \* number of leases that ended: an answer to a report of a former era renews nothing
    seen,     \* term and number of the latest order
    dirty,    \* whether the state has to be reported
    seat,     \* state, fence, whether the broker has closed the window, and whether a message has arrived by
              \* the bucket's own subscription
    sub,      \* at the broker: fence and window; fence 0 if there is no subscription
    cov,      \* at the broker: whether a bundle of the member has the bucket
    here,     \* whether the broker has the subscriptions of the member, or will restore them
    line,     \* messages that wait in the member
    hand,     \* the message in the handler, 0 if none
    out,      \* at the broker: delivered to the connection, and not surely confirmed
    queue,    \* at the broker: messages to deliver, also those that are not posted yet
    done,     \* handled messages
    top,      \* the highest fence under which a message was handed out
    reports,  \* reports on the way, in order, at most one of a member and connection
    mail,     \* orders on the way to the present connection
    crowns,   \* crowns in the control queue
    kept,     \* crowns delivered to a member and not confirmed
    early,    \* reports that a member received before it leads: the latest of each other member, or <<>>
    ldr,      \* the leader in each member
    left,     \* faults that may still happen
    bad       \* the broken guarantee of the last hand-out, or "none"

vars == <<life, conn, inc, lease, era, seen, dirty, seat, sub, cov, here, line, hand, out, queue, done, top,
          reports, mail, crowns, kept, early, ldr, left, bad>>
net == <<reports, mail>>
broker == <<sub, cov, here, out, queue>>
local == <<line, hand, done, top, bad>>
member == <<lease, era, seen, dirty, seat>>
process == <<life, conn, inc>>
crown == <<crowns, kept, early>>

Incs == 0..(Faults.cut + Faults.crash)
Who == Member \X Incs
who(m) == <<m, inc[m]>>
NoSeat == [st |-> "GONE", fence |-> 0, shut |-> FALSE, alone |-> FALSE]
NoSub == [fence |-> 0, open |-> FALSE]
NoOwner == [who |-> <<>>, fence |-> 0, granted |-> FALSE, num |-> 0, rec |-> FALSE]
\* `rank` is the priority in the control queue. A claim is posted once the broker has raised it: until then, `post`.
\* `await` are the members named by a leader that left, and `named` whether it did.
NoLeader == [phase |-> "NONE", term |-> 0, blk |-> 0, rank |-> 0, post |-> FALSE, named |-> FALSE, await |-> {}, next |-> [b \in Bucket |-> 0],
             known |-> [w \in {} |-> 0], own |-> [b \in Bucket |-> NoOwner], num |-> [w \in {} |-> 0]]
Min(S) == CHOOSE x \in S : \A y \in S : x <= y
Max(S) == CHOOSE x \in S : \A y \in S : x >= y
Later(s, t) == s[1] > t[1] \/ (s[1] = t[1] /\ s[2] >= t[2])
Live(m) == life[m] \in {"up", "closing"}
On(m) == Live(m) /\ conn[m] = "on"
\* A crown of a leader that leaves names members; of the first one there are none.
Crown(w, t, l) == [who |-> w, term |-> t, lim |-> l, named |-> t = 0, mem |-> {}]
Rank(term) == IF Mistake = "leaders are equal" THEN 1 ELSE term
Leads(m) == ldr[m].phase \in {"COLLECTING", "LEADING"}

\* Nothing is assigned, and the crown is free.
Fresh(first) ==
    /\ lease = [m \in Member |-> FALSE]
    /\ seen = [m \in Member |-> <<0, 0>>]
    /\ dirty = [m \in Member |-> m \in first]
    /\ seat = [m \in Member |-> [b \in Bucket |-> NoSeat]]
    /\ sub = [m \in Member |-> [b \in Bucket |-> NoSub]]
    /\ crowns = <<Crown(<<>>, 0, 1)>>
    /\ kept = [m \in Member |-> <<>>]
    /\ ldr = [m \in Member |-> NoLeader]

\* Every bucket is open at its owner.
Settled(first) ==
    \E l \in first : \E own \in [Bucket -> first] :
    /\ Buckets > 1 /\ Cardinality(first) > 1 => own[1] # own[2]
    /\ lease = [m \in Member |-> m \in first]
    /\ seen = [m \in Member |-> IF m \in first THEN <<1, 1>> ELSE <<0, 0>>]
    /\ dirty = [m \in Member |-> FALSE]
    /\ seat = [m \in Member |-> [b \in Bucket |->
        IF own[b] = m THEN [NoSeat EXCEPT !.st = "OPEN", !.fence = Block] ELSE NoSeat]]
    /\ sub = [m \in Member |-> [b \in Bucket |-> IF own[b] = m THEN [fence |-> Block, open |-> TRUE] ELSE NoSub]]
    /\ crowns = <<>>
    /\ kept = [m \in Member |-> IF m = l THEN <<Crown(<<m, 0>>, 1, 2)>> ELSE <<>>]
    /\ ldr = [m \in Member |-> IF m # l THEN NoLeader ELSE
        [NoLeader EXCEPT !.phase = "LEADING", !.term = 1, !.blk = 1, !.rank = Rank(1), !.next = [b \in Bucket |-> Block + 1],
         !.known = [w \in first \X {0} |-> [era |-> 0, ready |-> [b \in Bucket |-> FALSE]]],
         !.own = [b \in Bucket |-> [who |-> <<own[b], 0>>, fence |-> Block, granted |-> TRUE, num |-> 1, rec |-> FALSE]],
         !.num = [w \in first \X {0} |-> 1]]]

Init ==
    \E first \in {S \in SUBSET Member : Cardinality(S) = Joined} :
    /\ IF Steady THEN Settled(first) ELSE Fresh(first)
    /\ life = [m \in Member |-> IF m \in first THEN "up" ELSE "absent"]
    /\ conn = [m \in Member |-> IF m \in first THEN "on" ELSE "off"]
    /\ inc = [m \in Member |-> 0]
    /\ era = [m \in Member |-> 0]
    /\ cov = [m \in Member |-> [b \in Bucket |-> FALSE]]
    /\ here = [m \in Member |-> TRUE]
    /\ line = [m \in Member |-> [b \in Bucket |-> {}]]
    /\ hand = [m \in Member |-> [b \in Bucket |-> 0]]
    /\ out = [m \in Member |-> [b \in Bucket |-> {}]]
    /\ queue = [b \in Bucket |-> 1..Number(b)]
    /\ done = [b \in Bucket |-> {}]
    /\ top = [b \in Bucket |-> 0]
    /\ reports = [m \in Member |-> <<>>]
    /\ early = [m \in Member |-> [n \in Member |-> <<>>]]
    /\ mail = [m \in Member |-> <<>>]
    /\ left = [Faults EXCEPT !.join = Cardinality(Member) - Joined]
    /\ bad = "none"

-----------------------------------------------------------------------------
(* The data queue *)

Fence(m, b) == IF Mistake = "same priority" THEN 1 ELSE sub[m][b].fence
Standing(b) == {m \in Member : sub[m][b].fence > 0 /\ here[m]}

\* The bundles that have the bucket. A bundle has a higher priority than the subscription of any bucket.
Bundle(b) == {m \in Member : cov[m][b] /\ here[m] /\ conn[m] = "on"}

\* The next message arrives at m.
Arrives(m, b) ==
    /\ queue[b] # {}
    /\ Cardinality(line[m][b]) + (IF hand[m][b] = 0 THEN 0 ELSE 1) < Window
    /\ LET k == Min(queue[b]) IN
       /\ queue' = [queue EXCEPT ![b] = @ \ {k}]
       /\ line' = [line EXCEPT ![m][b] = @ \cup {k}]
       /\ out' = [out EXCEPT ![m][b] = @ \cup {k}]

\* By the subscription with the highest priority, if its window is open. No older subscription stands.
Deliver(m, b) ==
    /\ Bundle(b) = {}
    /\ m \in Standing(b)
    /\ \A n \in Standing(b) : Fence(m, b) <= Fence(n, b)
    /\ sub[m][b].open
    /\ Arrives(m, b)
    /\ seat' = [seat EXCEPT ![m][b].alone = @ \/ seat[m][b].st = "OPEN"]
    /\ UNCHANGED <<process, lease, era, seen, dirty, sub, cov, here, hand, done, top, bad, net, crown, ldr, left>>

\* By a bundle, whatever subscriptions of the bucket stand.
DeliverBundle(m, b) ==
    /\ m \in Bundle(b)
    /\ Arrives(m, b)
    /\ UNCHANGED <<process, member, sub, cov, here, hand, done, top, bad, net, crown, ldr, left>>

HandOut(m, b) ==
    /\ Live(m)
    /\ line[m][b] # {} /\ hand[m][b] = 0
    /\ seat[m][b].st \in {"OPEN", "DRAINING"}
    /\ lease[m] \/ Mistake = "lease ignored"
    /\ LET k == Min(line[m][b])
           f == seat[m][b].fence IN
       /\ line' = [line EXCEPT ![m][b] = @ \ {k}]
       /\ hand' = [hand EXCEPT ![m][b] = k]
       /\ top' = [top EXCEPT ![b] = f]
       /\ bad' = IF \E j \in 1..(k - 1) : j \notin done[b] THEN "order"
                 ELSE IF f < top[b] THEN "fence" ELSE bad
       /\ out' = IF Mistake = "confirmed at once" THEN [out EXCEPT ![m][b] = @ \ {k}] ELSE out
    /\ UNCHANGED <<process, member, sub, cov, here, queue, done, net, crown, ldr, left>>

\* The handler ends, and confirms. The confirmation may still be lost with the connection: see Back.
Finish(m, b) ==
    /\ Live(m) /\ hand[m][b] # 0
    /\ LET k == hand[m][b] IN
       /\ done' = [done EXCEPT ![b] = @ \cup {k}]
       /\ hand' = [hand EXCEPT ![m][b] = 0]
       /\ queue' = IF conn[m] = "on" THEN [queue EXCEPT ![b] = @ \ {k}] ELSE queue
       /\ out' = IF conn[m] = "on" THEN [out EXCEPT ![m][b] = @ \cup {k}] ELSE out
    /\ UNCHANGED <<process, member, sub, cov, here, line, top, bad, net, crown, ldr, left>>

\* The messages that come back when the broker loses a connection: those not confirmed. Confirmations of the
\* first messages have arrived, those from number `from` on have not.
Back(m, b, from) == {k \in out[m][b] : k \notin done[b] \/ k >= from}
Froms(m, b) == {Number(b) + 1} \cup (out[m][b] \cap done[b])

-----------------------------------------------------------------------------
(* Seats: the requests of a member, and the answers of the broker *)

Fire(s, input) ==
    LET st == Next_[s.st, input] IN IF st = "GONE" THEN NoSeat ELSE [s EXCEPT !.st = st]

\* An order grants if it answers a report sent afterwards: `ready` of all reports before becomes FALSE.
Subscribed(m, b) ==
    /\ On(m) /\ here[m] /\ seat[m][b].st = "ASKED"
    /\ seat' = [seat EXCEPT ![m][b] = IF Mistake = "opens early" THEN [@ EXCEPT !.st = "OPEN"]
                                      ELSE Fire(@, "ANSWERED")]
    /\ sub' = [sub EXCEPT ![m][b] = [fence |-> seat[m][b].fence, open |-> FALSE]]
    /\ dirty' = [dirty EXCEPT ![m] = TRUE]
    /\ reports' = [reports EXCEPT ![m] = [i \in 1..Len(@) |->
                        IF @[i].who = who(m) THEN [@[i] EXCEPT !.ready[b] = FALSE] ELSE @[i]]]
    /\ early' = [n \in Member |-> [early[n] EXCEPT ![m] = [i \in 1..Len(@) |->
                        IF @[i].who = who(m) THEN [@[i] EXCEPT !.ready[b] = FALSE] ELSE @[i]]]]
    /\ mail' = [mail EXCEPT ![m] = [i \in 1..Len(@) |-> [@[i] EXCEPT !.ready[b] = FALSE]]]
    /\ ldr' = [n \in Member |-> IF who(m) \notin DOMAIN ldr[n].known THEN ldr[n]
                                ELSE [ldr[n] EXCEPT !.known[who(m)].ready[b] = FALSE]]
    /\ UNCHANGED <<process, lease, era, seen, cov, here, out, queue, local, crowns, kept, left>>

\* The request may be on the way while the bucket is recalled.
Opened(m, b) ==
    /\ On(m) /\ here[m] /\ seat[m][b].st \in {"OPEN", "DRAINING"} /\ ~seat[m][b].shut
    /\ sub[m][b].fence = seat[m][b].fence /\ ~sub[m][b].open
    /\ sub' = [sub EXCEPT ![m][b].open = TRUE]
    /\ UNCHANGED <<process, member, cov, here, out, queue, local, net, crown, ldr, left>>

\* A bundle with the bucket: asked for while the bucket is open, and performed later.
Cover(m, b) ==
    /\ On(m) /\ here[m] /\ seat[m][b].st \in {"OPEN", "DRAINING"} /\ ~cov[m][b]
    /\ seat[m][b].alone \/ Mistake = "bundles at once"
    /\ seat[m][b].shut => Mistake = "bundles while draining"
    /\ cov' = [cov EXCEPT ![m][b] = TRUE]
    /\ sub' = IF Mistake = "bundles replace subscriptions" THEN [sub EXCEPT ![m][b] = NoSub] ELSE sub
    /\ UNCHANGED <<process, member, here, out, queue, local, net, crown, ldr, left>>

\* Other bundles are asked for, without the bucket.
Uncover(m, b) ==
    /\ On(m) /\ here[m] /\ cov[m][b]
    /\ seat[m][b].st # "OPEN" => Mistake # "keeps recalled bundles"
    /\ cov' = [cov EXCEPT ![m][b] = FALSE]
    /\ UNCHANGED <<process, member, sub, here, out, queue, local, net, crown, ldr, left>>

\* The answer says that the bundle is without the bucket as well. Uncover may have been performed before.
Shut(m, b) ==
    /\ On(m) /\ here[m] /\ seat[m][b].st = "DRAINING" /\ ~seat[m][b].shut
    /\ sub' = [sub EXCEPT ![m][b].open = FALSE]
    /\ cov' = IF Mistake = "keeps recalled bundles" \/ Mistake = "drains beside a bundle" THEN cov
              ELSE [cov EXCEPT ![m][b] = FALSE]
    /\ seat' = [seat EXCEPT ![m][b].shut = TRUE, ![m][b].alone = @ /\ Mistake = "bundles while draining"]
    /\ UNCHANGED <<process, lease, era, seen, dirty, here, out, queue, local, net, crown, ldr, left>>

Drained(m, b) ==
    /\ On(m) /\ seat[m][b].st = "DRAINING"
    /\ \/ seat[m][b].shut /\ line[m][b] = {} /\ hand[m][b] = 0
       \/ Mistake = "withdraws at once"
    /\ seat' = [seat EXCEPT ![m][b] = Fire(@, "DRAINED")]
    /\ UNCHANGED <<process, lease, era, seen, dirty, broker, local, net, crown, ldr, left>>

\* The broker has every confirmation, since requests of a connection are processed in order. A message that
\* the member has and has not handled comes back.
Withdrawn(m, b) ==
    /\ On(m) /\ here[m] /\ seat[m][b].st = "LEAVING"
    /\ sub' = [sub EXCEPT ![m][b] = NoSub]
    /\ seat' = [seat EXCEPT ![m][b] = Fire(@, "WITHDRAWN")]
    /\ queue' = [queue EXCEPT ![b] = @ \cup (out[m][b] \ done[b])]
    /\ out' = [out EXCEPT ![m][b] = {}]
    /\ line' = [line EXCEPT ![m][b] = {}]
    /\ dirty' = [dirty EXCEPT ![m] = TRUE]
    /\ UNCHANGED <<process, lease, era, seen, cov, here, hand, done, top, bad, net, crown, ldr, left>>

-----------------------------------------------------------------------------
(* Reports and orders *)

Content(m) == [who |-> who(m), seen |-> seen[m], era |-> era[m], leaving |-> FALSE,
               seats |-> [b \in Bucket |-> <<seat[m][b].st, seat[m][b].fence>>],
               ready |-> [b \in Bucket |-> seat[m][b].st = "READY"]]

Unknown(m) == \E l \in Member : On(l) /\ Leads(l) /\ who(m) \notin DOMAIN ldr[l].known

\* A report after each change; a beat where an answer is missing. Further beats repeat what is known.
Report(m) ==
    /\ life[m] = "up" /\ conn[m] = "on"
    /\ \A i \in 1..Len(reports[m]) : reports[m][i].who # who(m)
    /\ \/ dirty[m] \/ Unknown(m) \/ (~lease[m] /\ mail[m] = <<>>)
       \/ left.beat > 0 /\ lease[m]
    /\ left' = IF dirty[m] \/ Unknown(m) \/ ~lease[m] THEN left ELSE [left EXCEPT !.beat = @ - 1]
    /\ reports' = [reports EXCEPT ![m] = Append(@, Content(m))]
    /\ dirty' = [dirty EXCEPT ![m] = FALSE]
    /\ UNCHANGED <<process, lease, era, seen, seat, broker, local, mail, crown, ldr>>

Processed(m, b, o) ==
    LET s == seat[m][b]
        fence == o.buckets[b][1] IN
    IF s.st = "GONE" THEN IF fence > 0 THEN [NoSeat EXCEPT !.st = "ASKED", !.fence = fence] ELSE s
    ELSE IF fence # s.fence THEN Fire(s, "RECALLED")
    ELSE IF o.buckets[b][2] /\ (o.ready[b] \/ s.st # "READY" \/ Mistake = "any grant is believed") THEN Fire(s, "GRANTED") ELSE s

Order(m) ==
    /\ life[m] = "up" /\ conn[m] # "off" /\ mail[m] # <<>>
    /\ LET o == Head(mail[m])
           valid == Later(<<o.term, o.num>>, seen[m]) \/ Mistake = "old orders are valid" IN
       /\ mail' = [mail EXCEPT ![m] = Tail(@)]
       /\ IF ~valid THEN UNCHANGED member
          ELSE /\ seen' = [seen EXCEPT ![m] = <<o.term, o.num>>]
               /\ seat' = [seat EXCEPT ![m] = [b \in Bucket |-> Processed(m, b, o)]]
               /\ lease' = [lease EXCEPT ![m] = @ \/ o.era = era[m] \/ Mistake = "old orders renew"]
               /\ dirty' = [dirty EXCEPT ![m] =
                    @ \/ seen[m] # <<o.term, o.num>> \/ \E b \in Bucket : seat[m][b] # Processed(m, b, o)]
               /\ era' = era
    /\ UNCHANGED <<process, broker, local, reports, crown, ldr, left>>

-----------------------------------------------------------------------------
(* The leader. `own` is the newest ownership of each bucket. *)

Without(own, w) == [b \in Bucket |-> IF own[b].who = w THEN NoOwner ELSE own[b]]
Wanted(own, w) ==
    [b \in Bucket |-> IF own[b].who = w /\ ~own[b].rec THEN <<own[b].fence, own[b].granted>> ELSE <<0, FALSE>>]
Num(l, w) == IF w \in DOMAIN l.num THEN l.num[w] ELSE 0
Keep(f, S) == [w \in DOMAIN f \cap S |-> f[w]]

\* Ask back where a member has too many, and assign the free buckets: the possible results.
Fair(l, own, known, next) ==
    IF l.phase # "LEADING" \/ known = {} THEN {[own |-> own, next |-> next]} ELSE
    LET count == Cardinality(known)
        most == (Buckets + count - 1) \div count
        held(w) == {b \in Bucket : own[b].who = w /\ ~own[b].rec}
        many == {w \in known : Cardinality(held(w)) > most}
    IN UNION {LET
        back == {g[w] : w \in many}
        has(w) == Cardinality(held(w) \ back)
        own2 == [b \in Bucket |-> IF b \in back THEN [own[b] EXCEPT !.rec = TRUE, !.num = Num(l, own[b].who) + 1]
                                  ELSE own[b]]
        free == {b \in Bucket : own2[b] = NoOwner \/ (Mistake = "no wait for the old owner" /\ own2[b].rec)}
        fair == {f \in [free -> known] : \A w \in known : has(w) + Cardinality({b \in free : f[b] = w}) <= most}
    IN {[own |-> [b \in Bucket |-> IF b \in free
                    THEN [who |-> f[b], fence |-> next[b], granted |-> FALSE, num |-> Num(l, f[b]) + 1, rec |-> FALSE]
                    ELSE own2[b]],
         next |-> [b \in Bucket |-> IF b \in free THEN next[b] + 1 ELSE next[b]]] : f \in fair}
    : g \in {h \in [many -> Bucket] : \A w \in many : h[w] \in held(w)}}

\* Traces.tla replaces this definition by the choice of the product.
Assigned(l, own, known, next) == Fair(l, own, known, next)

\* The catch-all subscription of m has the highest priority of the control queue.
Receives(m) == \A n \in Member : On(n) => ldr[n].rank <= ldr[m].rank
Rival(m) == \E n \in Member \ {m} : On(n) /\ ldr[n].phase # "NONE" /\ ldr[n].rank >= ldr[m].rank

Push(box, o) ==
    IF box # <<>> /\ box[Len(box)] = o THEN box
    ELSE IF Len(box) = Orders /\ ~Later(<<o.term, o.num>>, <<box[Len(box)].term, box[Len(box)].num>>) THEN box
    ELSE IF Len(box) < Orders THEN Append(box, o) ELSE [box EXCEPT ![Len(box)] = o]

\* Continue as leader l with these members and owners; `answered` gets an order in any case.
Lead(m, l, own, known, next, answered) ==
    \E a \in Assigned(l, own, DOMAIN known, next) :
    LET changed == {w \in DOMAIN known \cup DOMAIN l.num : Wanted(l.own, w) # Wanted(a.own, w)}
        num == [w \in DOMAIN known \cup DOMAIN l.num |-> Num(l, w) + (IF w \in changed THEN 1 ELSE 0)]
        order(w) == [term |-> l.term, num |-> num[w], era |-> known[w].era, ready |-> known[w].ready, buckets |-> Wanted(a.own, w)]
    IN /\ ldr' = [ldr EXCEPT ![m] = [l EXCEPT !.own = a.own, !.next = a.next, !.known = known, !.num = num]]
       /\ mail' = [n \in Member |->
            IF who(n) \in DOMAIN known /\ (who(n) \in changed \/ who(n) = answered) /\ On(n)
            THEN Push(mail[n], order(who(n))) ELSE mail[n]]

\* The leader reads a report.
Read(m, n) ==
    /\ On(m) /\ Leads(m) /\ Receives(m) /\ reports[n] # <<>>
    /\ LET r == Head(reports[n])
           l == ldr[m]
           w == r.who
           was == <<n, w[2] - 1>>
           gone == (IF w[2] > 0 THEN {was} ELSE {}) \cup (IF r.leaving THEN {w} ELSE {})
           own1 == [b \in Bucket |-> IF l.own[b].who \in gone THEN NoOwner ELSE l.own[b]]
           learn(b) ==
               LET o == own1[b]
                   st == r.seats[b][1]
                   f == r.seats[b][2]
                   o2 == IF st # "GONE" /\ (o = NoOwner \/ o.fence < f)
                         THEN [who |-> w, fence |-> f, granted |-> st = "OPEN", num |-> 0, rec |-> st # "OPEN"]
                         ELSE o
               IN IF o2.who # w THEN o2
                  ELSE IF st = "GONE" THEN IF Later(r.seen, <<l.term, o2.num>>) /\ (o2.rec \/ Mistake = "absent is released")
                                           THEN NoOwner ELSE o2
                  ELSE IF o2.fence # f \/ o2.rec THEN o2
                  ELSE IF o2.num = 0 /\ st # "OPEN" /\ Mistake # "old reports are believed"
                  THEN [o2 EXCEPT !.rec = TRUE, !.num = Num(l, w) + 1]
                  ELSE IF st = "READY" THEN [o2 EXCEPT !.granted = TRUE] ELSE o2
           own2 == IF r.leaving THEN own1 ELSE [b \in Bucket |-> learn(b)]
           next == [b \in Bucket |-> Max({l.next[b], r.seats[b][2] + 1})]
           known1 == Keep(l.known, Who \ gone)
           known == IF r.leaving THEN known1 ELSE (w :> [era |-> r.era, ready |-> r.ready]) @@ known1
           await == l.await \ {w, was}
       IN Lead(m, [l EXCEPT !.await = await, !.phase = IF l.named /\ await = {} THEN "LEADING" ELSE @], own2, known, IF r.leaving THEN l.next ELSE next, w)
    /\ reports' = [reports EXCEPT ![n] = Tail(@)]
    /\ UNCHANGED <<process, member, broker, local, crown, left>>

\* While members elect a leader, a report may reach a member that does not lead. It keeps the report until
\* it leads, and the sender repeats it.
Early(m, n) ==
    /\ left.early > 0 /\ On(m) /\ life[m] = "up" /\ ~Leads(m) /\ Receives(m) /\ reports[n] # <<>>
    /\ left' = [left EXCEPT !.early = @ - 1]
    /\ early' = [early EXCEPT ![m][n] = <<Head(reports[n])>>]
    /\ reports' = [reports EXCEPT ![n] = Tail(@)]
    /\ dirty' = [dirty EXCEPT ![n] = @ \/ life[n] = "up"]
    /\ UNCHANGED <<process, lease, era, seen, seat, broker, local, mail, crowns, kept, ldr>>

\* The present connection of a live member.
Present(w) == Live(w[1]) /\ inc[w[1]] = w[2] /\ conn[w[1]] # "off"

\* A member is silent for a lease. With AnyClock, a connected one may be taken for silent at any time.
Expire(m, w) ==
    /\ Live(m) /\ conn[m] # "off" /\ ldr[m].phase = "LEADING" /\ w \in DOMAIN ldr[m].known
    /\ Present(w) => \/ conn[w[1]] = "cut" /\ ~lease[w[1]]
                     \/ Rival(m)
                     \/ conn[w[1]] = "on" /\ left.pause > 0 /\ (AnyClock \/ ~lease[w[1]])
    /\ left' = IF Present(w) /\ conn[w[1]] = "on" /\ ~Rival(m) THEN [left EXCEPT !.pause = @ - 1] ELSE left
    /\ Lead(m, ldr[m], Without(ldr[m].own, w), Keep(ldr[m].known, Who \ {w}), ldr[m].next, <<>>)
    /\ UNCHANGED <<process, member, broker, local, reports, crown>>

Collected(m) ==
    /\ Live(m) /\ conn[m] # "off" /\ ldr[m].phase = "COLLECTING"
    /\ \/ AnyClock
       \/ \A n \in Member : life[n] = "up" /\ lease[n] /\ conn[n] # "off" => who(n) \in DOMAIN ldr[m].known
    /\ Lead(m, [ldr[m] EXCEPT !.phase = "LEADING"], ldr[m].own, ldr[m].known, ldr[m].next, <<>>)
    /\ UNCHANGED <<process, member, broker, local, reports, crown, left>>

\* A crown arrives at the member with the highest priority.
Crowned(m) ==
    /\ On(m) /\ life[m] = "up" /\ crowns # <<>> /\ Receives(m) /\ ~ldr[m].post
    /\ LET c == Head(crowns)
           l == ldr[m]
           mine == c.who = who(m)
           blk == Max({l.blk, c.lim})
           next == [b \in Bucket |-> IF Mistake = "fences are reused" THEN Block ELSE Max({l.next[b], blk * Block})]
           named == l.phase = "NONE" /\ c.named
           claim == [NoLeader EXCEPT
                !.phase = IF Mistake = "leads before the crown is back" THEN "COLLECTING" ELSE "CLAIMING",
                !.term = Max({l.term, c.term}) + 1, !.blk = blk, !.next = next,
                !.rank = l.rank, !.post = TRUE, !.named = named, !.await = IF named THEN c.mem ELSE {}]
       IN /\ IF l.phase = "CLAIMING" /\ mine /\ c.term = l.term
             THEN /\ ldr' = [ldr EXCEPT ![m].phase =
                       IF (l.named /\ l.await = {}) \/ Mistake = "collects no reports" THEN "LEADING" ELSE "COLLECTING"]
                  /\ kept' = [kept EXCEPT ![m] = Append(@, c)]
             ELSE IF Leads(m) /\ mine /\ c.term = l.term
             THEN /\ kept' = [kept EXCEPT ![m] = Append(@, c)]
                  /\ UNCHANGED ldr
             ELSE IF \/ l.phase # "NONE" /\ mine /\ c.term < l.term
                     \/ Leads(m) /\ c.term < l.term /\ c.lim <= l.blk
                     \/ Leads(m) /\ c.term = l.term /\ c.lim <= l.blk /\ Mistake = "leaders are equal"
             THEN UNCHANGED <<ldr, kept>>
             ELSE /\ ldr' = [ldr EXCEPT ![m] = claim]
                  /\ kept' = [kept EXCEPT ![m] = Append(@, c)]
          /\ IF l.phase = "CLAIMING" /\ mine /\ c.term = l.term
             THEN /\ reports' = [n \in Member |-> early[m][n] \o reports[n]]
                  /\ early' = [early EXCEPT ![m] = [n \in Member |-> <<>>]]
             ELSE UNCHANGED <<reports, early>>
    /\ crowns' = Tail(crowns)
    /\ UNCHANGED <<process, member, broker, local, mail, left>>

\* The broker has raised the priority of the claimant, and the claim is posted.
Claim(m) ==
    /\ On(m) /\ ldr[m].post
    /\ ldr' = [ldr EXCEPT ![m].rank = Rank(ldr[m].term), ![m].post = FALSE]
    /\ crowns' = Append(crowns, Crown(who(m), ldr[m].term, ldr[m].blk + 1))
    /\ UNCHANGED <<process, member, broker, local, net, kept, early, left>>

\* A leader posts its crown from time to time. Only rivals of the same term learn something from it.
Renew(m) ==
    /\ On(m) /\ Leads(m) /\ life[m] = "up" /\ crowns = <<>>
    /\ \E n \in Member \ {m} : On(n) /\ Leads(n) /\ ldr[n].rank = ldr[m].rank /\ ldr[n].term = ldr[m].term
    /\ crowns' = <<Crown(who(m), ldr[m].term, ldr[m].blk + 1)>>
    /\ UNCHANGED <<process, member, broker, local, net, kept, early, ldr, left>>

\* The former crown is confirmed.
Former(m) ==
    /\ On(m) /\ Len(kept[m]) > 1
    /\ kept' = [kept EXCEPT ![m] = Tail(@)]
    /\ UNCHANGED <<process, member, broker, local, net, crowns, early, ldr, left>>

-----------------------------------------------------------------------------
(* Faults *)

\* The broker loses connections.
Dropped(S) ==
    /\ \E from \in [S \X Bucket -> 1..(Messages + 1)] :
        /\ \A m \in S, b \in Bucket : from[<<m, b>>] \in Froms(m, b)
        /\ queue' = [b \in Bucket |-> queue[b] \cup UNION {Back(m, b, from[<<m, b>>]) : m \in S}]
    /\ out' = [m \in Member |-> IF m \in S THEN [b \in Bucket |-> {}] ELSE out[m]]
    /\ sub' = [m \in Member |-> IF m \in S THEN [b \in Bucket |-> NoSub] ELSE sub[m]]
    /\ cov' = [m \in Member |-> IF m \in S /\ Mistake # "keeps lost bundles" THEN [b \in Bucket |-> FALSE] ELSE cov[m]]
    /\ here' = [m \in Member |-> m \in S \/ here[m]]

RECURSIVE Returned(_)
Returned(S) == IF S = {} THEN <<>> ELSE LET m == CHOOSE n \in S : TRUE IN kept[m] \o Returned(S \ {m})

CrownBack(S) ==
    /\ crowns' = Returned({m \in S : kept[m] # <<>>}) \o crowns
    /\ kept' = [m \in Member |-> IF m \in S THEN <<>> ELSE kept[m]]
    /\ early' = [m \in Member |-> IF m \in S THEN [n \in Member |-> <<>>] ELSE early[m]]

Others(m) == \E n \in Member \ {m} : life[n] = "up"

Join(m) ==
    /\ life[m] = "absent" /\ left.join > 0
    /\ life' = [life EXCEPT ![m] = "up"]
    /\ conn' = [conn EXCEPT ![m] = "on"]
    /\ dirty' = [dirty EXCEPT ![m] = TRUE]
    /\ left' = [left EXCEPT !.join = @ - 1]
    /\ UNCHANGED <<inc, lease, era, seen, seat, broker, local, net, crown, ldr>>

\* The data queue is closed once nothing is in hand; a report follows; the control queue is closed later.
Leave(m) ==
    /\ left.leave > 0 /\ life[m] = "up" /\ conn[m] = "on" /\ Others(m)
    /\ \A b \in Bucket : hand[m][b] = 0
    /\ left' = [left EXCEPT !.leave = @ - 1]
    /\ life' = [life EXCEPT ![m] = "closing"]
    /\ queue' = [b \in Bucket |-> queue[b] \cup (out[m][b] \ done[b])]
    /\ out' = [out EXCEPT ![m] = [b \in Bucket |-> {}]]
    /\ sub' = [sub EXCEPT ![m] = [b \in Bucket |-> NoSub]]
    /\ cov' = [cov EXCEPT ![m] = [b \in Bucket |-> FALSE]]
    /\ line' = [line EXCEPT ![m] = [b \in Bucket |-> {}]]
    /\ seat' = [seat EXCEPT ![m] = [b \in Bucket |-> NoSeat]]
    /\ lease' = [lease EXCEPT ![m] = FALSE]
    /\ dirty' = [dirty EXCEPT ![m] = FALSE]
    /\ mail' = [mail EXCEPT ![m] = <<>>]
    /\ reports' = [reports EXCEPT ![m] = Append(@, [Content(m) EXCEPT !.leaving = TRUE,
                                                    !.seats = [b \in Bucket |-> <<"GONE", 0>>]])]
    /\ UNCHANGED <<conn, inc, era, seen, here, hand, done, top, bad, crown, ldr>>

Left(m) ==
    /\ life[m] = "closing"
    /\ life' = [life EXCEPT ![m] = "gone"]
    /\ conn' = [conn EXCEPT ![m] = "off"]
    /\ IF ldr[m].phase = "LEADING"
       THEN \* The crown is replaced by one that names the remaining members.
            /\ crowns' = Append(crowns, [who |-> <<>>, term |-> ldr[m].term, lim |-> ldr[m].blk + 1, named |-> TRUE,
                                        mem |-> DOMAIN ldr[m].known \ {who(m)}])
            /\ kept' = [kept EXCEPT ![m] = <<>>]
            /\ UNCHANGED early
       ELSE CrownBack({m})
    /\ ldr' = [ldr EXCEPT ![m] = NoLeader]
    /\ UNCHANGED <<inc, member, broker, local, net, left>>

Kill(m) ==
    /\ left.kill > 0 /\ life[m] = "up" /\ Others(m)
    /\ left' = [left EXCEPT !.kill = @ - 1]
    /\ life' = [life EXCEPT ![m] = "dead"]
    /\ conn' = [conn EXCEPT ![m] = "off"]
    /\ Dropped({m})
    /\ CrownBack({m})
    /\ ldr' = [ldr EXCEPT ![m] = NoLeader]
    /\ line' = [line EXCEPT ![m] = [b \in Bucket |-> {}]]
    /\ hand' = [hand EXCEPT ![m] = [b \in Bucket |-> 0]]
    /\ seat' = [seat EXCEPT ![m] = [b \in Bucket |-> NoSeat]]
    /\ lease' = [lease EXCEPT ![m] = FALSE]
    /\ dirty' = [dirty EXCEPT ![m] = FALSE]
    /\ seen' = [seen EXCEPT ![m] = <<0, 0>>]
    /\ era' = [era EXCEPT ![m] = 0]
    /\ mail' = [mail EXCEPT ![m] = <<>>]
    /\ UNCHANGED <<inc, done, top, bad, reports>>

Cut(S) ==
    /\ \A m \in S : life[m] = "up" /\ conn[m] = "on"
    /\ conn' = [m \in Member |-> IF m \in S THEN "cut" ELSE conn[m]]
    /\ Dropped(S)
    /\ CrownBack(S)
    /\ UNCHANGED <<life, inc, member, local, net, ldr>>

CutOne(m) == left.cut > 0 /\ Cut({m}) /\ left' = [left EXCEPT !.cut = @ - 1]

\* The broker dies, and starts again with the messages that it had.
Crash ==
    /\ left.crash > 0
    /\ Cut({m \in Member : life[m] = "up" /\ conn[m] = "on"})
    /\ left' = [left EXCEPT !.crash = @ - 1]

Notice(m) ==
    /\ Live(m) /\ conn[m] = "cut"
    /\ conn' = [conn EXCEPT ![m] = "off"]
    /\ inc' = [inc EXCEPT ![m] = @ + 1]
    /\ seat' = [seat EXCEPT ![m] = [b \in Bucket |-> IF seat[m][b].st = "GONE" \/ Mistake = "keeps lost buckets"
                                                     THEN seat[m][b] ELSE Fire(seat[m][b], "LOST")]]
    /\ line' = [line EXCEPT ![m] = [b \in Bucket |-> {}]]
    /\ hand' = [hand EXCEPT ![m] = [b \in Bucket |-> 0]]
    /\ lease' = [lease EXCEPT ![m] = FALSE]
    /\ era' = [era EXCEPT ![m] = 0]
    /\ seen' = [seen EXCEPT ![m] = <<0, 0>>]
    /\ dirty' = [dirty EXCEPT ![m] = TRUE]
    /\ mail' = [mail EXCEPT ![m] = <<>>]
    /\ ldr' = [ldr EXCEPT ![m] = [NoLeader EXCEPT !.term = ldr[m].term, !.blk = ldr[m].blk, !.next = ldr[m].next]]
    /\ UNCHANGED <<life, broker, done, top, bad, reports, crown, left>>

Reconnect(m) ==
    /\ Live(m) /\ conn[m] = "off"
    /\ conn' = [conn EXCEPT ![m] = "on"]
    /\ sub' = [sub EXCEPT ![m] = [b \in Bucket |-> IF seat[m][b].st \in {"OPEN", "DRAINING"}
                                                   THEN [fence |-> seat[m][b].fence, open |-> TRUE] ELSE NoSub]]
    /\ UNCHANGED <<life, inc, member, cov, here, out, queue, local, net, crown, ldr, left>>

\* The lease of a member ends: the process is paused, or its connection is lost.
Ended(m) ==
    /\ life[m] = "up" /\ lease[m]
    /\ conn[m] = "cut" \/ left.pause > 0
    /\ left' = IF conn[m] = "cut" THEN left ELSE [left EXCEPT !.pause = @ - 1]
    /\ lease' = [lease EXCEPT ![m] = FALSE]
    /\ era' = [era EXCEPT ![m] = @ + 1]
    /\ UNCHANGED <<process, seen, dirty, seat, broker, local, net, crown, ldr>>

\* A new primary: connections stand, messages without a confirmation come again, and subscriptions are
\* restored in any order.
Failover ==
    /\ left.failover > 0
    /\ left' = [left EXCEPT !.failover = @ - 1]
    /\ \E from \in [Member \X Bucket -> 1..(Messages + 1)] :
        /\ \A m \in Member, b \in Bucket : from[<<m, b>>] \in Froms(m, b)
        /\ queue' = [b \in Bucket |-> queue[b] \cup UNION {Back(m, b, from[<<m, b>>]) : m \in Member}]
    /\ out' = [m \in Member |-> [b \in Bucket |-> {}]]
    /\ here' = [m \in Member |-> ~On(m)]
    /\ UNCHANGED <<process, member, sub, cov, local, net, crown, ldr>>

Restored(m) ==
    /\ ~here[m]
    /\ here' = [here EXCEPT ![m] = TRUE]
    /\ UNCHANGED <<process, member, sub, cov, out, queue, local, net, crown, ldr, left>>

-----------------------------------------------------------------------------

Progress ==
    \/ \E m \in Member, b \in Bucket :
        \/ HandOut(m, b) \/ Finish(m, b) \/ Subscribed(m, b) \/ Opened(m, b) \/ Shut(m, b)
        \/ Drained(m, b) \/ Withdrawn(m, b) \/ Deliver(m, b) \/ DeliverBundle(m, b)
    \/ \E m \in Member :
        \/ Order(m) \/ Crowned(m) \/ Claim(m) \/ Renew(m) \/ Former(m) \/ Collected(m) \/ Notice(m) \/ Reconnect(m) \/ Restored(m)
        \/ Left(m)
        \/ Report(m)
        \/ conn[m] = "cut" /\ Ended(m)
    \/ \E m, n \in Member : Read(m, n)
    \/ \E m \in Member, w \in Who : (Rival(m) \/ ~(Present(w) /\ conn[w[1]] = "on")) /\ Expire(m, w)

Fault ==
    \/ \E m \in Member :
        \/ Join(m) \/ Leave(m) \/ Kill(m) \/ CutOne(m)
        \/ conn[m] # "cut" /\ Ended(m)
    \/ Crash \/ Failover
    \/ \E m, n \in Member : Early(m, n)
    \/ \E m \in Member, w \in Who : ~Rival(m) /\ Present(w) /\ conn[w[1]] = "on" /\ Expire(m, w)

\* A member may ask for bundles at any time, or never.
Bundles == \E m \in Member, b \in Bucket : Cover(m, b) \/ Uncover(m, b)

Next == Progress \/ Fault \/ Bundles
Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ WF_vars(Progress)

-----------------------------------------------------------------------------
(* Guarantees *)

\* A message is handed out after every earlier message of its bucket is handled, and under a fence that is
\* not lower than before.
InOrder == bad = "none"

\* Two members have a message of a bucket in their handlers only if the connection of one is lost and its
\* lease is over: this handler began before, and nothing can stop it.
Zombie(m) == conn[m] # "on" /\ ~lease[m]
Exclusive ==
    \A b \in Bucket, m, n \in Member :
        m # n /\ hand[m][b] # 0 /\ hand[n][b] # 0 => Zombie(m) \/ Zombie(n)

\* No message reaches an owner while another owner has a message that is not handled.
OneOwner ==
    \A b \in Bucket, m, n \in Member :
        m # n => out[m][b] \subseteq done[b] \/ out[n][b] \subseteq done[b]

\* A bucket is in the bundles of one member at most.
OneBundle == \A b \in Bucket : Cardinality(Bundle(b)) <= 1

\* A message that the broker does not have any more was handled.
NothingLost ==
    \A b \in Bucket : \A k \in 1..Number(b) :
        (k \in queue[b]) \/ (k \in done[b]) \/ \E m \in Member : k \in out[m][b]

\* Every message is handled, and every bucket is open at one live member.
Rest ==
    /\ \A b \in Bucket :
        /\ done[b] = 1..Number(b) /\ queue[b] = {}
        /\ Cardinality({m \in Member : seat[m][b].st # "GONE"}) = 1
        /\ \A m \in Member : seat[m][b].st # "GONE" => seat[m][b].st = "OPEN" /\ On(m) /\ lease[m]
    /\ \A m, n \in Member : life[m] = "up" /\ life[n] = "up" =>
        Cardinality({b \in Bucket : seat[m][b].st # "GONE"}) <= Cardinality({b \in Bucket : seat[n][b].st # "GONE"}) + 1
    /\ \E m \in Member :
        /\ Leads(m)
        /\ \A n \in Member \ {m} : ldr[n].rank < ldr[m].rank /\ DOMAIN ldr[n].known = {}

\* A state in which nothing but faults can happen.
NeverStuck == ENABLED Progress \/ Rest

Safety == InOrder /\ Exclusive /\ NothingLost /\ OneOwner /\ OneBundle
AtLast == <>[]Rest
Symmetry == Permutations(Member)
=============================================================================
