# SPDX-License-Identifier: Apache-2.0
"""The prices of the shop, in answer to requests."""

from __future__ import annotations

from messages import PREFIX, Article, Price, UnknownArticle

import bmq

CENTS = {"tea": 250, "coffee": 300, "cake": 420}

router = bmq.Router(prefix=PREFIX)


@router.responder("prices", concurrency=8)
async def price(article: Article) -> Price:
    """Answer with the price of an article."""
    if article.name not in CENTS:
        raise UnknownArticle(f"no {article.name}")
    return Price(CENTS[article.name])
