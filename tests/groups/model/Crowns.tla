------------------------------- MODULE Crowns -------------------------------
(***************************************************************************)
(* The election of a leader: `Candidate` of bmq/groups/_protocol.py, and   *)
(* its use in bmq/groups/_coordinator.py. Exclusive.tla begins with one    *)
(* crown. This module shows that no member posts a first crown while       *)
(* another crown exists, and that some member leads at last. It has the    *)
(* control queue in detail: subscriptions, and everything on the way to    *)
(* the broker and to a member. README.md has the abstractions and results. *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Count,        \* number of processes: a smaller number is a smaller name
    Joined,       \* members in the group at the start
    Steady,       \* whether member 1 leads at the start, and the others are candidates
    Reports,      \* reports of a member on the way
    Prompt,       \* whether the broker delivers before anything else happens there, as a single node does
    Faults,       \* how often each fault may happen
    Timely,       \* whether a member wakes up by time only when nothing else helps: for AtLast
    Mistake       \* a planted mistake; "none" for the protocol

Member == 1..Count

\* Candidate.TRANSITIONS in _protocol.py, compared by test_specification.py: <<state, input, action, next state>>. The
\* input CROWN leads to HOLDING from each state. Other missing pairs change nothing.
Transitions == {
    <<"YIELDED", "WAKE", "OPEN", "OPENING">>,
    <<"YIELDED", "RETURNED", "OPEN", "OPENING">>,
    <<"OPENING", "ANSWERED", "NOTHING", "CANDIDATE">>,
    <<"CANDIDATE", "SMALLER", "NARROW", "NARROWING">>,
    <<"CANDIDATE", "PROVED", "NOTHING", "POSTED">>,
    <<"POSTED", "WAKE", "NOTHING", "CANDIDATE">>,
    <<"NARROWING", "ANSWERED", "CLOSE", "CLOSING">>,
    <<"NARROWING", "WAKE", "NOTHING", "WIDENING">>,
    <<"WIDENING", "ANSWERED", "OPEN", "OPENING">>,
    <<"CLOSING", "ANSWERED", "NOTHING", "YIELDED">>,
    <<"CLOSING", "WAKE", "NOTHING", "REOPENING">>,
    <<"REOPENING", "ANSWERED", "OPEN", "OPENING">>
}
Pairs == {<<t[1], t[2]>> : t \in Transitions}
Row == [p \in Pairs |-> CHOOSE t \in Transitions : <<t[1], t[2]>> = p]

VARIABLES
    life,     \* of a process: absent, up, closing, gone
    inc,      \* number of the connection: <<member, number>> is `who`
    st,       \* state of the candidate
    sub,      \* at the broker: OTHERS and CROWNS, a subset
    rank,     \* at the broker: priority of the leader's subscription to everything, 0 if there is none
    up,       \* requests, posts and confirmations on the way to the broker
    net,      \* deliveries and responses on the way to the member
    box,      \* crowns that arrived, and were not read
    kept,     \* crowns that were read, and not confirmed
    ldr,      \* the leader in each member
    store,    \* at the broker: messages that are not confirmed; `to` has the message, 0 if nobody has
    guard,    \* whether the broker drops a further first crown as a duplicate
    way,      \* whether a request to give way waits in the mailbox
    order,    \* leader whose order waits in the mailbox, 0 if there is none
    seen,     \* leader of the latest order
    left,     \* faults that may still happen
    top,      \* the highest block of fences of any leader so far
    bad       \* the broken guarantee, or "none"

vars == <<life, inc, st, sub, rank, up, net, box, kept, ldr, store, guard, way, order, seen, left, top, bad>>

Old == Mistake = "any own report is a proof"
who(m) == <<m, inc[m]>>
Smaller(v, w) == v[1] < w[1] \/ (v[1] = w[1] /\ v[2] < w[2])
Max(S) == CHOOSE x \in S : \A y \in S : x >= y
Min(S) == CHOOSE x \in S : \A y \in S : x <= y
All == {"OTHERS", "CROWNS"}
NoLeader == [phase |-> "NONE", term |-> 0, blk |-> 0, named |-> FALSE]
\* The first crown, and a crown of a leader that left, name members.
Crown(w, t, l, named) == [k |-> "crown", who |-> w, term |-> t, lim |-> l, named |-> named, to |-> 0, back |-> FALSE]
First == Crown(<<>>, 0, 1, TRUE)
Leads(m) == ldr[m].phase = "LEADING"

Init ==
    LET s == Steady \/ Old
        own == [Crown(<<1, 0>>, 1, 2, FALSE) EXCEPT !.to = 1]
        leads(m) == Steady /\ m = 1
    IN
    /\ life = [m \in Member |-> IF m <= Joined THEN "up" ELSE "absent"]
    /\ inc = [m \in Member |-> 0]
    /\ st = [m \in Member |-> IF leads(m) THEN "HOLDING" ELSE IF s /\ m <= Joined THEN "CANDIDATE" ELSE "YIELDED"]
    /\ sub = [m \in Member |-> IF s /\ m <= Joined /\ ~leads(m) THEN All ELSE {}]
    /\ rank = [m \in Member |-> IF leads(m) THEN 1 ELSE 0]
    /\ up = [m \in Member |-> <<>>]
    /\ net = [m \in Member |-> <<>>]
    /\ box = [m \in Member |-> <<>>]
    /\ kept = [m \in Member |-> IF leads(m) THEN <<own>> ELSE <<>>]
    /\ ldr = [m \in Member |-> IF leads(m) THEN [phase |-> "LEADING", term |-> 1, blk |-> 1, named |-> TRUE] ELSE NoLeader]
    /\ store = IF Steady THEN <<own>> ELSE <<>>
    /\ guard = FALSE
    /\ way = [m \in Member |-> FALSE]
    /\ order = [m \in Member |-> 0]
    /\ seen = [m \in Member |-> IF Steady /\ m <= Joined THEN 1 ELSE 0]
    /\ left = [Faults EXCEPT !.join = Count - Joined]
    /\ top = IF Steady THEN 1 ELSE 0
    /\ bad = "none"

-----------------------------------------------------------------------------
(* The broker *)

\* The subscriptions with the highest priority that match; any of them gets the message.
Receivers(x) ==
    LET leaders == {n \in Member : rank[n] > 0}
        others == {n \in Member : "OTHERS" \in sub[n] /\ (Old \/ n # x.who[1] \/ x.who # who(n))}
    IN IF leaders # {} THEN {n \in leaders : \A o \in leaders : rank[o] <= rank[n]}
       ELSE IF x.k = "crown" THEN {n \in Member : "CROWNS" \in sub[n]}
       ELSE IF others # {} THEN others
       ELSE IF life[x.who[1]] \in {"up", "closing"} /\ x.who = who(x.who[1]) THEN {x.who[1]} ELSE {}

\* While a message of a lost connection waits for a subscription, nothing new is delivered. A new message
\* without a subscription is put aside.
Deliver(i, m) ==
    LET waits == {j \in 1..Len(store) : store[j].to = 0}
        back == {j \in waits : store[j].back}
        able == {j \in IF back # {} THEN back ELSE waits : Receivers(store[j]) # {}}
    IN /\ able # {} /\ i = Min(able) /\ m \in Receivers(store[i])
       /\ store' = [store EXCEPT ![i].to = m]
       /\ net' = [net EXCEPT ![m] = Append(@, store'[i])]
       /\ UNCHANGED <<life, inc, st, sub, rank, up, box, kept, ldr, guard, way, order, seen, left, top, bad>>

Idle == Prompt => ~\E i \in 1..Len(store) : store[i].to = 0
                 /\ (store[i].back \/ \A j \in 1..Len(store) : ~(store[j].back /\ store[j].to = 0))
                 /\ Receivers(store[i]) # {}

Remove(s, i) == [j \in 1..(Len(s) - 1) |-> IF j < i THEN s[j] ELSE s[j + 1]]
Same(x, y) == x.k = y.k /\ x.who = y.who /\ (x.k = "crown" => x.term = y.term /\ x.lim = y.lim)
Confirmed(m, x) ==
    LET found == {i \in 1..Len(store) : store[i].to = m /\ Same(store[i], x)}
    IN IF found = {} THEN store ELSE Remove(store, Min(found))

\* The broker loses the connection of m.
Dropped(m) ==
    /\ sub' = [sub EXCEPT ![m] = {}]
    /\ rank' = [rank EXCEPT ![m] = 0]
    /\ store' = [i \in 1..Len(store) |-> IF store[i].to = m THEN [store[i] EXCEPT !.to = 0, !.back = TRUE] ELSE store[i]]
    /\ net' = [net EXCEPT ![m] = <<>>]
    /\ up' = [up EXCEPT ![m] = <<>>]
    /\ box' = [box EXCEPT ![m] = <<>>]
    /\ kept' = [kept EXCEPT ![m] = <<>>]

\* The next request, post or confirmation of m arrives at the broker.
Arrive(m) ==
    /\ up[m] # <<>> /\ Idle
    /\ LET x == Head(up[m])
           rest == [up EXCEPT ![m] = Tail(@)]
           answer(k) == [net EXCEPT ![m] = Append(@, [k |-> k])] IN
       CASE x.k = "report" \/ x.k = "crown" ->
                /\ LET double == x.k = "crown" /\ x.who = <<>> /\ x.term = 0 IN
                   /\ store' = IF double /\ guard THEN store ELSE Append(store, x)
                   /\ guard' = (guard \/ double)
                /\ up' = rest
                /\ UNCHANGED <<life, sub, rank, net, box, kept, ldr, st>>
         [] x.k = "set" ->
                /\ sub' = [sub EXCEPT ![m] = x.s]
                /\ rank' = [rank EXCEPT ![m] = 0]
                /\ net' = answer("answer")
                /\ up' = rest
                /\ UNCHANGED <<life, box, kept, ldr, st, store, guard>>
         [] x.k = "lead" ->
                /\ sub' = [sub EXCEPT ![m] = {}]
                /\ rank' = [rank EXCEPT ![m] = x.rank]
                /\ net' = answer("raised")
                /\ up' = rest
                /\ UNCHANGED <<life, box, kept, ldr, st, store, guard>>
         [] x.k = "confirm" ->
                /\ store' = Confirmed(m, x.x)
                /\ up' = rest
                /\ UNCHANGED <<life, sub, rank, net, box, kept, ldr, st, guard>>
         [] x.k = "bye" ->
                /\ Dropped(m)
                /\ life' = [life EXCEPT ![m] = "gone"]
                /\ ldr' = [ldr EXCEPT ![m] = NoLeader]
                /\ st' = [st EXCEPT ![m] = "YIELDED"]
                /\ UNCHANGED guard
    /\ UNCHANGED <<inc, way, order, seen, left, top, bad>>

-----------------------------------------------------------------------------
(* The member *)

\* A member with the order of a present leader reports again only `left.beat` times: further reports repeat what
\* is known. `ok`: posted since the member became a candidate. `stands`: the sender is a candidate, or has a crown.
Answer(m) == seen[m] # 0 /\ life[seen[m]] = "up" /\ Leads(seen[m])
Report(m) ==
    /\ life[m] = "up"
    /\ ~Answer(m) \/ left.beat > 0
    /\ left' = IF Answer(m) THEN [left EXCEPT !.beat = @ - 1] ELSE left
    /\ Cardinality({i \in 1..Len(store) : store[i].k = "report" /\ store[i].who = who(m)})
       + Cardinality({i \in 1..Len(up[m]) : up[m][i].k = "report"}) < Reports
    /\ up' = [up EXCEPT ![m] = Append(@, [k |-> "report", who |-> who(m), ok |-> TRUE,
            stands |-> st[m] \in {"CANDIDATE", "POSTED", "HOLDING"}, to |-> 0, back |-> FALSE])]
    /\ UNCHANGED <<life, inc, st, sub, rank, net, box, kept, ldr, store, guard, way, order, seen, top, bad>>

\* Reports posted before are no proof.
Stale(s, m) == IF Mistake = "a report of any age is a proof" THEN s ELSE [i \in 1..Len(s) |->
    IF s[i].k = "report" /\ s[i].who = who(m) THEN [s[i] EXCEPT !.ok = FALSE] ELSE s[i]]

Set(action) ==
    CASE action = "OPEN" -> All
      [] action = "NARROW" -> IF Mistake = "OTHERS closes first" THEN {"CROWNS"} ELSE {"OTHERS"}
      [] action = "CLOSE" -> {}

\* An input of the candidate, with the messages so far.
Fire(m, input, mail, stored) ==
    LET row == IF <<st[m], input>> \in Pairs THEN Row[<<st[m], input>>]
               ELSE <<"", "", "NOTHING", IF input = "CROWN" THEN "HOLDING" ELSE st[m]>>
        row2 == IF Mistake = "gives way after a first crown" /\ row[4] = "POSTED" THEN <<"", "", "NOTHING", "CANDIDATE">>
                ELSE IF Mistake = "never wakes up" /\ row[2] \in {"WAKE", "RETURNED"} /\ st[m] # "POSTED" /\ seen[m] = 0
                THEN <<"", "", "NOTHING", st[m]>> ELSE row
        items == IF row2[3] = "NOTHING" THEN up[m] ELSE Append(up[m], [k |-> "set", s |-> Set(row2[3])])
        enters == row2[4] = "CANDIDATE" /\ st[m] # "CANDIDATE"
    IN /\ st' = [st EXCEPT ![m] = IF Old THEN @ ELSE row2[4]]
       /\ up' = [up EXCEPT ![m] = IF Old THEN @ ELSE IF enters THEN Stale(items, m) ELSE items]
       /\ net' = IF enters THEN [mail EXCEPT ![m] = Stale(@, m)] ELSE mail
       /\ store' = IF enters THEN Stale(stored, m) ELSE stored

\* A crown exists. A first crown may not be posted then.
Elsewhere(m) ==
    \/ \E i \in 1..Len(store) : store[i].k = "crown"
    \/ \E n \in Member \ {m} : \E i \in 1..Len(up[n]) : up[n][i].k = "crown"
Confirm(x) == [k |-> "confirm", x |-> x]
Unread(m) == box[m] # <<>> /\ Mistake # "unread crowns do not count"

ReadReport(m, r, rest) ==
    LET after == Confirmed(m, r)
        proof == /\ st[m] = "CANDIDATE" /\ ldr[m].phase = "NONE" /\ r.ok
                 /\ ~r.back \/ Mistake = "a redelivered report is a proof" \/ Old
    IN IF r.who = who(m) /\ ~Leads(m)
       THEN /\ IF proof
               THEN /\ st' = [st EXCEPT ![m] = IF Old \/ Mistake = "gives way after a first crown" THEN @ ELSE "POSTED"]
                    /\ up' = [up EXCEPT ![m] = Append(@, First)]
                    /\ bad' = IF Elsewhere(m) THEN "first" ELSE bad
                    /\ net' = rest
                    /\ store' = after
               ELSE Fire(m, "RETURNED", rest, after) /\ UNCHANGED bad
            /\ UNCHANGED <<way, order>>
       ELSE IF Leads(m)
       THEN /\ order' = [order EXCEPT ![r.who[1]] = IF r.who = who(r.who[1]) THEN m ELSE @]
            /\ net' = rest
            /\ store' = after
            /\ UNCHANGED <<st, up, way, bad>>
       ELSE /\ Fire(m, IF Smaller(r.who, who(m)) /\ (r.stands \/ Mistake = "gives way to anybody") THEN "SMALLER" ELSE "NONE", rest, after)
            /\ way' = [way EXCEPT ![r.who[1]] = @ \/ (Timely /\ r.stands /\ r.who[1] > m /\ st[m] = "CANDIDATE" /\ r.who = who(r.who[1]))]
            /\ UNCHANGED <<order, bad>>

\* The next delivery or response reaches m. Crowns that arrived before are read first.
Read(m) ==
    /\ life[m] = "up" /\ net[m] # <<>>
    /\ Head(net[m]).k \in {"crown", "raised"} \/ ~Unread(m)
    /\ LET x == Head(net[m])
           rest == [net EXCEPT ![m] = Tail(@)] IN
       CASE x.k = "report" -> ReadReport(m, x, rest) /\ UNCHANGED <<box, kept>>
         [] x.k = "crown" -> /\ box' = [box EXCEPT ![m] = Append(@, x)]
                             /\ net' = rest
                             /\ UNCHANGED <<st, up, store, way, order, kept, bad>>
         [] x.k = "answer" -> Fire(m, "ANSWERED", rest, store) /\ UNCHANGED <<box, way, order, kept, bad>>
         [] x.k = "raised" -> \* The claim is posted, and the crown before the one that caused the claim is confirmed.
                /\ up' = [up EXCEPT ![m] = Append(@, Crown(who(m), ldr[m].term, ldr[m].blk + 1, FALSE))
                                          \o (IF Len(kept[m]) > 1 THEN <<Confirm(kept[m][1])>> ELSE <<>>)]
                /\ kept' = [kept EXCEPT ![m] = IF Len(@) > 1 THEN Tail(@) ELSE @]
                /\ net' = rest
                /\ UNCHANGED <<st, box, store, way, order, bad>>
    /\ UNCHANGED <<life, inc, sub, rank, ldr, guard, seen, left, top>>

\* A member reads a crown: Leader.crown in _protocol.py.
Raising(m) == (\E i \in 1..Len(up[m]) : up[m][i].k = "lead") \/ \E i \in 1..Len(net[m]) : net[m][i].k = "raised"
Crowned(m) ==
    /\ life[m] = "up" /\ box[m] # <<>> /\ ~Raising(m)
    /\ box' = [box EXCEPT ![m] = Tail(@)]
    /\ st' = [st EXCEPT ![m] = IF Mistake = "gives way with a crown" THEN @ ELSE "HOLDING"]
    /\ LET c == Head(box[m])
           l == ldr[m]
           mine == c.who = who(m)
           term == Max({l.term, c.term}) + 1
       IN IF l.phase = "CLAIMING" /\ mine /\ c.term = l.term
          THEN \* The member leads. The former crown is confirmed: the broker has the new one.
               /\ ldr' = [ldr EXCEPT ![m].phase = "LEADING"]
               /\ kept' = [kept EXCEPT ![m] = <<c>>]
               /\ up' = [up EXCEPT ![m] = @ \o [i \in 1..Len(kept[m]) |-> Confirm(kept[m][i])]]
               /\ top' = Max({top, l.blk})
               /\ bad' = IF l.named /\ l.blk <= top THEN "fence" ELSE bad
          ELSE IF \/ l.phase # "NONE" /\ mine /\ c.term < l.term
                  \/ Leads(m) /\ c.term < l.term /\ c.lim <= l.blk
          THEN /\ up' = [up EXCEPT ![m] = Append(@, Confirm(c))]
               /\ UNCHANGED <<ldr, kept, top, bad>>
          ELSE /\ ldr' = [ldr EXCEPT ![m] = [phase |-> "CLAIMING", term |-> term, blk |-> Max({l.blk, c.lim}),
                                            named |-> l.phase = "NONE" /\ c.named]]
               /\ kept' = [kept EXCEPT ![m] = IF Mistake = "confirms the crown at once" THEN @ ELSE Append(@, c)]
               /\ up' = [up EXCEPT ![m] = @ \o (IF Mistake = "confirms the crown at once" THEN <<Confirm(c)>> ELSE <<>>)
                                            \o <<[k |-> "lead", rank |-> term]>>]
               /\ UNCHANGED <<top, bad>>
    /\ UNCHANGED <<life, inc, sub, rank, net, store, guard, way, order, seen, left>>

Order(m) ==
    /\ life[m] = "up" /\ order[m] # 0
    /\ order' = [order EXCEPT ![m] = 0]
    /\ seen' = [seen EXCEPT ![m] = order[m]]
    /\ Fire(m, "WAKE", net, store)
    /\ UNCHANGED <<life, inc, sub, rank, box, kept, ldr, guard, way, left, top, bad>>

\* A candidate asks a member with a larger name to give way. Giving way is safe at any time.
Way(m) ==
    /\ life[m] = "up" /\ IF Timely THEN way[m] ELSE st[m] = "CANDIDATE" /\ ~Old
    /\ way' = [way EXCEPT ![m] = FALSE]
    /\ Fire(m, "SMALLER", net, store)
    /\ UNCHANGED <<life, inc, sub, rank, box, kept, ldr, guard, order, seen, left, top, bad>>

\* A member that has given way wakes up by itself.
Stuck == \A n \in Member : life[n] = "up" => st[n] = "YIELDED" /\ net[n] = <<>>
Time(m) ==
    /\ life[m] = "up" /\ st[m] = "YIELDED" /\ Mistake # "no time"
    /\ Timely => order[m] = 0 /\ (Stuck \/ Answer(m))
    /\ Fire(m, "WAKE", net, store)
    /\ UNCHANGED <<life, inc, sub, rank, box, kept, ldr, guard, way, order, seen, left, top, bad>>

-----------------------------------------------------------------------------
(* Faults. A paused member takes no step. *)

Join(m) ==
    /\ life[m] = "absent" /\ left.join > 0
    /\ life' = [life EXCEPT ![m] = "up"]
    /\ st' = [st EXCEPT ![m] = IF Old THEN "CANDIDATE" ELSE "YIELDED"]
    /\ sub' = [sub EXCEPT ![m] = IF Old THEN All ELSE {}]
    /\ left' = [left EXCEPT !.join = @ - 1]
    /\ UNCHANGED <<inc, rank, up, net, box, kept, ldr, store, guard, way, order, seen, top, bad>>

Fresh(m) ==
    /\ Dropped(m)
    /\ st' = [st EXCEPT ![m] = "YIELDED"]
    /\ way' = [way EXCEPT ![m] = FALSE]
    /\ order' = [order EXCEPT ![m] = 0]
    /\ seen' = [seen EXCEPT ![m] = 0]

Others(m) == \E n \in Member \ {m} : life[n] = "up"

Kill(m) ==
    /\ left.kill > 0 /\ life[m] = "up" /\ Others(m) /\ Idle
    /\ left' = [left EXCEPT !.kill = @ - 1]
    /\ life' = [life EXCEPT ![m] = "gone"]
    /\ ldr' = [ldr EXCEPT ![m] = NoLeader]
    /\ Fresh(m)
    /\ UNCHANGED <<inc, guard, top, bad>>

\* The connection is lost, and the next one begins.
Cut(m) ==
    /\ left.cut > 0 /\ life[m] = "up" /\ ~Old /\ Idle
    /\ left' = [left EXCEPT !.cut = @ - 1]
    /\ inc' = [inc EXCEPT ![m] = @ + 1]
    /\ ldr' = [ldr EXCEPT ![m] = [NoLeader EXCEPT !.term = ldr[m].term, !.blk = ldr[m].blk]]
    /\ Fresh(m)
    /\ UNCHANGED <<life, guard, top, bad>>

\* A leader posts a crown in place of its own, and closes the queue.
Leave(m) ==
    /\ left.leave > 0 /\ life[m] = "up" /\ Others(m)
    /\ left' = [left EXCEPT !.leave = @ - 1]
    /\ life' = [life EXCEPT ![m] = "closing"]
    /\ up' = [up EXCEPT ![m] = @ \o (IF Leads(m) /\ kept[m] # <<>>
                 THEN <<Crown(<<>>, ldr[m].term, ldr[m].blk + 1, TRUE), Confirm(kept[m][Len(kept[m])])>>
                 ELSE <<>>) \o <<[k |-> "bye"]>>]
    /\ UNCHANGED <<inc, st, sub, rank, net, box, kept, ldr, store, guard, way, order, seen, top, bad>>

-----------------------------------------------------------------------------

Delivers(m) == \E i \in 1..Len(store) : Deliver(i, m)
Progress ==
    \E m \in Member : Delivers(m) \/ Arrive(m) \/ Report(m) \/ Read(m) \/ Crowned(m) \/ Order(m) \/ Way(m) \/ Time(m)
Fault == \E m \in Member : Join(m) \/ Kill(m) \/ Cut(m) \/ Leave(m)

Spec == Init /\ [][Progress \/ Fault]_vars
FairSpec == Spec /\ \A m \in Member :
    /\ SF_vars(Delivers(m)) /\ SF_vars(Arrive(m)) /\ SF_vars(Report(m)) /\ WF_vars(Read(m)) /\ WF_vars(Crowned(m))
    /\ WF_vars(Order(m)) /\ WF_vars(Way(m)) /\ WF_vars(Time(m))

\* No member posts a first crown while there is another crown.
Proof == bad # "first"
\* A leader that assigns at once, without reports, has newer fences than all leaders before.
FencesGrow == bad # "fence"
\* While a member may have a crown, it receives the reports of other members.
Covered ==
    \A m \in Member :
        /\ life[m] = "up"
        /\ "CROWNS" \in sub[m] \/ \E i \in 1..Len(store) : store[i].k = "crown" /\ store[i].to = m
        => "OTHERS" \in sub[m] \/ rank[m] > 0

\* A member leads, and every member has an order of this leader.
Rest ==
    \E l \in Member :
        /\ life[l] = "up" /\ Leads(l)
        /\ \A n \in Member : life[n] = "up" => seen[n] = l /\ st[n] \in {"CANDIDATE", "HOLDING"} /\ rank[n] <= rank[l]
AtLast == <>[]Rest
=============================================================================
