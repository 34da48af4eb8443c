# SPDX-License-Identifier: Apache-2.0
"""An exhaustive model of the agreement about buckets: every interleaving of members, broker and faults."""
