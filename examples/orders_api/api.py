# SPDX-License-Identifier: Apache-2.0
"""Orders over HTTP: each is posted to a queue before the request is answered.

    bmq broker --port 30114 &
    uvicorn api:api --app-dir examples/orders_api
    curl -X PUT --json '{"customer": 7, "address": "1 Main Street"}' localhost:8000/orders/1

This runs API and shipping in the same process. With many orders to ship, let `uvicorn api:front --app-dir
examples/orders_api` only accept orders, in any number of processes, and `bmq run orders --dir
examples/orders_api` ship the orders.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import fastapi
import pydantic
from orders import ORDERS, Order
from orders import app as worker

import bmq
from bmq.conventions import derived_guid


class Placed(pydantic.BaseModel):
    number: int
    guid: str


class Wanted(pydantic.BaseModel):
    customer: int
    address: Annotated[str, pydantic.Field(min_length=1, max_length=500)]


@asynccontextmanager
async def with_worker(api: fastapi.FastAPI) -> AsyncGenerator[dict[str, Any]]:
    async with worker:
        yield {"session": worker.session, "orders": (await worker.queue(ORDERS)).typed(Order)}


@asynccontextmanager
async def without_worker(api: fastapi.FastAPI) -> AsyncGenerator[dict[str, Any]]:
    async with bmq.connect() as session:
        queue = await session.open_queue(ORDERS, write=True)
        yield {"session": session, "orders": queue.typed(Order)}


router = fastapi.APIRouter()


@router.put("/orders/{number}", status_code=202)
async def place(
    number: Annotated[int, fastapi.Path(ge=1)], wanted: Wanted, request: fastapi.Request
) -> Placed:
    """A repeated request, after a lost answer, has the same GUID: the broker keeps one message."""
    order = Order(number=number, customer=wanted.customer, address=wanted.address)
    orders: bmq.TypedQueue[Order] = request.state.orders
    ack = await orders.post(order, guid=derived_guid("order", str(number)), timeout=5)
    return Placed(number=number, guid=ack.guid)


@router.get("/ready")
def ready(request: fastapi.Request, response: fastapi.Response) -> dict[str, str]:
    health = request.state.session.health()
    if not health.ready:
        response.status_code = 503
    return {"session": str(health)}


def refused(request: fastapi.Request, error: Exception) -> fastapi.Response:
    """Tell the client whether to try again."""
    assert isinstance(error, bmq.Error)
    again = error.retryable or isinstance(error, bmq.TimedOut)
    headers = {"Retry-After": "5"} if again else {}
    return fastapi.responses.JSONResponse({"detail": str(error)}, 503 if again else 500, headers)


def service(lifespan: Any) -> fastapi.FastAPI:
    made = fastapi.FastAPI(title="Orders", lifespan=lifespan)
    made.include_router(router)
    made.add_exception_handler(bmq.Error, refused)
    return made


api = service(with_worker)
front = service(without_worker)
