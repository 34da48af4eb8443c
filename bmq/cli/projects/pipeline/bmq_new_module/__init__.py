# SPDX-License-Identifier: Apache-2.0
"""The Spark job bmq-new-project."""
