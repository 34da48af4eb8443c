------------------------------- MODULE Traces -------------------------------
(***************************************************************************)
(* Traces for tests/groups/test_replay.py: Exclusive.tla, with the product's *)
(* choice where the specification leaves one, and with the name of each step. *)
(* README.md says how to make them.                                        *)
(***************************************************************************)
EXTENDS Exclusive

VARIABLES step, at     \* the step that led to the state, with its arguments, and its number

\* The names of the connections are sorted in the product.
Ord(w) == 100 * (CHOOSE i \in 1..Cardinality(Member) : ToString(w[1]) = <<"m1", "m2", "m3">>[i]) + w[2]

\* `shares` and `_assign` of _protocol.py, with equal weights and at most two buckets.
RECURSIVE Given(_, _, _, _)
Given(b, free, has, share) ==
    IF b > Buckets THEN [c \in {} |-> <<>>]
    ELSE IF b \notin free THEN Given(b + 1, free, has, share)
    ELSE LET lacking == {w \in DOMAIN share : has[w] < share[w]}
             first(v, w) == \/ has[v] * share[w] < has[w] * share[v]
                            \/ has[v] * share[w] = has[w] * share[v] /\ Ord(v) <= Ord(w)
             w == CHOOSE v \in lacking : \A x \in lacking : first(v, x)
         IN IF lacking = {} THEN [c \in {} |-> <<>>]
            ELSE (b :> w) @@ Given(b + 1, free, [has EXCEPT ![w] = @ + 1], share)

Chosen(l, own, known, next) ==
    IF l.phase # "LEADING" \/ known = {} THEN {[own |-> own, next |-> next]} ELSE
    LET count == Cardinality(known)
        held == [w \in known |-> {b \in Bucket : own[b].who = w /\ ~own[b].rec}]
        h(w) == Cardinality(held[w])
        before(w) == {v \in known : h(v) > h(w) \/ (h(v) = h(w) /\ Ord(v) < Ord(w))}
        share == [w \in known |-> Buckets \div count + (IF Cardinality(before(w)) < Buckets % count THEN 1 ELSE 0)]
        back == {Min(held[w]) : w \in {v \in known : h(v) > share[v]}}
        own2 == [b \in Bucket |-> IF b \in back THEN [own[b] EXCEPT !.rec = TRUE, !.num = Num(l, own[b].who) + 1]
                                  ELSE own[b]]
        given == Given(1, {b \in Bucket : own2[b] = NoOwner}, [w \in known |-> Min({h(w), share[w]})], share)
        result ==
            [own |-> [b \in Bucket |-> IF b \in DOMAIN given
                THEN [who |-> given[b], fence |-> next[b], granted |-> FALSE, num |-> Num(l, given[b]) + 1, rec |-> FALSE]
                ELSE own2[b]],
             next |-> [b \in Bucket |-> IF b \in DOMAIN given THEN next[b] + 1 ELSE next[b]]]
    IN IF Assert(result \in Fair(l, own, known, next), "the product's choice is none of the specification")
       THEN {result} ELSE {}

InitTrace == Init /\ step = <<"Init">> /\ at = 1

Do(name, m) == step' = <<name, m>>
With(name, m, x) == step' = <<name, m, x>>

NextTrace ==
    /\ at' = at + 1
    /\ \/ \E m \in Member, b \in Bucket :
            \/ HandOut(m, b) /\ With("HandOut", m, b)
            \/ Finish(m, b) /\ With("Finish", m, b)
            \/ Subscribed(m, b) /\ With("Subscribed", m, b)
            \/ Opened(m, b) /\ With("Opened", m, b)
            \/ Shut(m, b) /\ With("Shut", m, b)
            \/ Drained(m, b) /\ With("Drained", m, b)
            \/ Withdrawn(m, b) /\ With("Withdrawn", m, b)
            \/ Deliver(m, b) /\ With("Deliver", m, b)
            \/ DeliverBundle(m, b) /\ With("DeliverBundle", m, b)
            \/ Cover(m, b) /\ With("Cover", m, b)
            \/ Uncover(m, b) /\ RandomElement(1..6) = 1 /\ With("Uncover", m, b)
       \/ \E m \in Member :
            \/ Order(m) /\ Do("Order", m)
            \/ Crowned(m) /\ Do("Crowned", m)
            \/ Claim(m) /\ Do("Claim", m)
            \/ Renew(m) /\ Do("Renew", m)
            \/ Former(m) /\ Do("Former", m)
            \/ Collected(m) /\ Do("Collected", m)
            \/ Notice(m) /\ Do("Notice", m)
            \/ Reconnect(m) /\ Do("Reconnect", m)
            \/ Restored(m) /\ Do("Restored", m)
            \/ Left(m) /\ Do("Left", m)
            \/ Report(m) /\ Do("Report", m)
            \/ Ended(m) /\ Do("Ended", m)
            \/ Join(m) /\ Do("Join", m)
            \/ Leave(m) /\ Do("Leave", m)
            \/ Kill(m) /\ Do("Kill", m)
            \/ CutOne(m) /\ Do("Cut", m)
       \/ \E m, n \in Member :
            \/ Read(m, n) /\ With("Read", m, n)
            \/ Early(m, n) /\ With("Early", m, n)
       \/ \E m \in Member, w \in Who : Expire(m, w) /\ With("Expire", m, w)
       \/ Crash /\ step' = <<"Crash">>
       \/ Failover /\ step' = <<"Failover">>
    \* Faults wait for a leader in most cases.
    /\ left' = left \/ (\E m \in Member : ldr[m].phase = "LEADING") \/ RandomElement(1..6) = 1

SpecTrace == InitTrace /\ [][NextTrace]_<<vars, step, at>>
=============================================================================
