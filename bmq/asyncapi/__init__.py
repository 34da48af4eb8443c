# SPDX-License-Identifier: Apache-2.0
"""AsyncAPI 3 documents of apps: queues, messages and schemas, from the registered handlers.

``bmq docs MODULE:APP`` prints such a document. The function here is for programs, for example a web service
that serves its document. Both only read the app: they connect to no broker.
"""

from bmq.asyncapi._document import document

__all__ = ["document"]
