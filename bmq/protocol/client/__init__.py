"""The client role: one session as a state machine without I/O."""
