# SPDX-License-Identifier: Apache-2.0
"""The broker role: the other end of a session, as a state machine without I/O."""
