---------------------------- MODULE CrownTraces ----------------------------
(***************************************************************************)
(* Traces for tests/groups/test_replay.py: Crowns.tla with the name of     *)
(* each step. README.md says how to make them.                             *)
(***************************************************************************)
EXTENDS Crowns

VARIABLES step, at     \* the step that led to the state, with its arguments, and its number

InitTrace == Init /\ step = <<"Init">> /\ at = 1

Do(name, m) == step' = <<name, m>>

NextTrace ==
    /\ at' = at + 1
    /\ \E m \in Member :
        \/ Delivers(m) /\ Do("Deliver", m)
        \/ Arrive(m) /\ Do("Arrive", m)
        \/ Report(m) /\ Do("Report", m)
        \/ Read(m) /\ Do("Read", m)
        \/ Crowned(m) /\ Do("Crowned", m)
        \/ Order(m) /\ Do("Order", m)
        \/ Way(m) /\ Do("Way", m)
        \/ Time(m) /\ Do("Time", m)
        \/ Join(m) /\ Do("Join", m)
        \/ Kill(m) /\ Do("Kill", m)
        \/ Cut(m) /\ Do("Cut", m)
        \/ Leave(m) /\ Do("Leave", m)
    \* Faults wait for a leader in most cases, and mail and time do little.
    /\ left' = left \/ (\E m \in Member : Leads(m)) \/ RandomElement(1..40) = 1
    /\ step'[1] \in {"Time", "Way"} => RandomElement(1..4) = 1

SpecTrace == InitTrace /\ [][NextTrace]_<<vars, step, at>>
=============================================================================
