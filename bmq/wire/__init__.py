# SPDX-License-Identifier: Apache-2.0
"""Bytes to values and back: the BlazingMQ wire format as pure functions.

``layout`` declares every binary header with Construct; ``codec`` derives precompiled ``struct`` codecs
from the declarations; the other modules assemble events. The functions of this package keep no state, read no
clock and open no socket.
"""
