# SPDX-License-Identifier: Apache-2.0
"""AsyncAPI 3 documents of apps: queues, messages and schemas, from the registered handlers.

``bmq docs MODULE:APP`` prints such a document. The functions here are for programs, for example a web service
with a page about its queues. Both only read the app: they connect to no broker.
"""

from bmq.asyncapi._document import document
from bmq.asyncapi._page import page

__all__ = ["document", "page"]
