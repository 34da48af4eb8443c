# SPDX-License-Identifier: Apache-2.0
"""The service bmq-new-project."""
