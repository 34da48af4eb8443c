# SPDX-License-Identifier: Apache-2.0
"""The other end, for either role: a broker that does what it is told, a client of a few bytes."""
