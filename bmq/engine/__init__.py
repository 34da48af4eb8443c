# SPDX-License-Identifier: Apache-2.0
"""The asyncio I/O of a session: channel, connection, dialer, flow control, driver.

The engine knows the protocol below, and the ports of :mod:`bmq.engine.ports` above. It never imports the
public objects of :mod:`bmq.client`.
"""
