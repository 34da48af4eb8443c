# SPDX-License-Identifier: Apache-2.0
"""Bytes to values and back: the BlazingMQ wire format as pure functions.

``layout`` declares every binary header with Construct; ``codec`` derives precompiled ``struct`` codecs
from those declarations; the other modules put the pieces together. Nothing here keeps state, reads a
clock or opens a socket.
"""
