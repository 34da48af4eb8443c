# SPDX-License-Identifier: Apache-2.0
"""The peer for either role: a scripted broker, and a client of a few bytes."""
