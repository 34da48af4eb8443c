------------------------------- MODULE Cases -------------------------------
(***************************************************************************)
(* Starts and invariants of single rows of README.md. runs.py makes the    *)
(* configurations.                                                         *)
(***************************************************************************)
EXTENDS Exclusive

\* Nothing is on the way, and `owner` has bucket 1 under this fence.
Quiet(owner, fence) ==
    /\ life = [m \in Member |-> "up"]
    /\ conn = [m \in Member |-> "on"]
    /\ lease = [m \in Member |-> TRUE]
    /\ dirty = [m \in Member |-> FALSE]
    /\ seat = [m \in Member |-> [b \in Bucket |->
        IF m = owner THEN [NoSeat EXCEPT !.st = "OPEN", !.fence = fence] ELSE NoSeat]]
    /\ sub = [m \in Member |-> [b \in Bucket |-> IF m = owner THEN [fence |-> fence, open |-> TRUE] ELSE NoSub]]
    /\ cov = [m \in Member |-> [b \in Bucket |-> FALSE]]
    /\ here = [m \in Member |-> TRUE]
    /\ line = [m \in Member |-> [b \in Bucket |-> {}]]
    /\ hand = [m \in Member |-> [b \in Bucket |-> 0]]
    /\ out = [m \in Member |-> [b \in Bucket |-> {}]]
    /\ queue = [b \in Bucket |-> 1..Number(b)]
    /\ done = [b \in Bucket |-> {}]
    /\ top = [b \in Bucket |-> 0]
    /\ reports = [m \in Member |-> <<>>]
    /\ mail = [m \in Member |-> <<>>]
    /\ crowns = <<>>
    /\ bad = "none"

\* A leader of this term: `eras` and `nums` of the connections.
Leading(term, owner, fence, eras, nums) ==
    [NoLeader EXCEPT !.phase = "LEADING", !.term = term, !.blk = term, !.next = [b \in Bucket |-> fence + 1],
     !.known = [w \in DOMAIN eras |-> [era |-> eras[w], ready |-> [b \in Bucket |-> FALSE]]],
     !.own = [b \in Bucket |-> [who |-> <<owner, 0>>, fence |-> fence, granted |-> TRUE, num |-> 1, rec |-> FALSE]],
     !.num = nums]

\* The connection of `l`, the leader, was lost. Meanwhile `owner` received a report that names the bucket open at
\* `former`, and keeps the report. `l` leads again, was without a report of `former` for a lease, and has
\* assigned the bucket to `owner`.
InitOld ==
    \E l, former, owner \in Member :
    LET old == [who |-> <<former, 0>>, seen |-> <<1, 1>>, era |-> 0, leaving |-> FALSE,
                seats |-> [b \in Bucket |-> <<"OPEN", Block>>], ready |-> [b \in Bucket |-> FALSE]]
        num(m) == IF m = l THEN 0 ELSE 2
        who1(m) == <<m, IF m = l THEN 1 ELSE 0>>
        all == {who1(m) : m \in Member}
    IN
    /\ Cardinality({l, former, owner}) = 3
    /\ Quiet(owner, 2 * Block)
    /\ inc = [m \in Member |-> IF m = l THEN 1 ELSE 0]
    /\ era = [m \in Member |-> IF m = former THEN 1 ELSE 0]
    /\ seen = [m \in Member |-> <<2, num(m)>>]
    /\ early = [m \in Member |-> [n \in Member |-> IF m = owner /\ n = former THEN <<old>> ELSE <<>>]]
    /\ kept = [m \in Member |-> IF m = l THEN <<Crown(who1(l), 2, 3)>> ELSE <<>>]
    /\ ldr = [m \in Member |-> IF m # l THEN NoLeader ELSE
        [Leading(2, owner, 2 * Block, [w \in all |-> IF w[1] = former THEN 1 ELSE 0], [w \in all |-> num(w[1])])
            EXCEPT !.rank = Rank(2)]]
    /\ left = [Faults EXCEPT !.cut = 0, !.pause = 0, !.early = 0, !.beat = @ - 1]
SpecOld == InitOld /\ [][Next]_vars

\* With the mistake "leads before the crown is back": the claimant leads, and has not posted its crown.
InitClaimant ==
    \E l, owner \in Member :
    LET num(m) == IF m = owner THEN 2 ELSE 0
        all == Member \X {0}
    IN
    /\ l # owner
    /\ Quiet(owner, Block)
    /\ inc = [m \in Member |-> 0]
    /\ era = [m \in Member |-> 0]
    /\ seen = [m \in Member |-> <<1, num(m)>>]
    /\ early = [m \in Member |-> [n \in Member |-> <<>>]]
    /\ kept = [m \in Member |-> IF m = l THEN <<Crown(<<>>, 0, 1)>> ELSE <<>>]
    /\ ldr = [m \in Member |-> IF m # l THEN NoLeader ELSE
        [Leading(1, owner, Block, [w \in all |-> 0], [w \in all |-> num(w[1])]) EXCEPT !.post = TRUE, !.named = TRUE]]
    /\ left = Faults
SpecClaimant == InitClaimant /\ [][Next]_vars

\* The starts are reachable if these invariants are violated. The constraints keep to the way.
NotOld == ~InitOld
WayOld ==
    /\ Cardinality({m \in Member : reports[m] # <<>>}) + Cardinality({m \in Member : mail[m] # <<>>}) <= 1
    /\ \A m \in Member :
        /\ ldr[m].term = 0 => conn[m] = "on" /\ inc[m] = 0 /\ ldr[m].phase = "NONE"
        /\ ldr[m].term > 0 => \A b \in Bucket : ldr[m].own[b].who \notin {<<m, 0>>, <<m, 1>>}
        /\ early[m][m] = <<>>
        /\ era[m] > 0 => left.early = 0 /\ \E n \in Member : early[n][m] # <<>> /\ ldr[n].phase = "NONE"
        /\ left.beat = 0 /\ left.early = 1 /\ reports[m] # <<>> => seat[m][1].st = "OPEN"
    /\ left.cut = 0 => left.beat = 0
    /\ left.early = 0 => left.cut = 0
    /\ left.early = 1 => \A m \in Member : conn[m] # "off"
    /\ left.pause < 2 => \E m \in Member : ldr[m].phase = "LEADING" /\ ldr[m].term = 2
NotClaimant == ~InitClaimant
WayClaimant == \A m, n \in Member : ldr[m].rank = 0 /\ (ldr[m].term > 0 /\ ldr[n].term > 0 => m = n)

\* A leader assigns at most two fences of a bucket: only with two members and a leave.
Thrift == \A m \in Member, b \in Bucket : ldr[m].next[b] <= ldr[m].blk * Block + 2

\* Two connected leaders have different priorities: not a guarantee, since crowns settle rivals.
OneTop == \A m, n \in Member : m # n /\ On(m) /\ On(n) /\ Leads(m) /\ Leads(n) => ldr[m].rank # ldr[n].rank
=============================================================================
