# SPDX-License-Identifier: Apache-2.0
"""Views: each order is in the database and in the queue before the request is answered."""

from __future__ import annotations

import json

from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_http_methods

import bmq
from bmq.conventions import derived_guid

from .broker import session
from .models import Order
from .worker import ORDERS, Placed


@require_http_methods(["PUT", "GET"])
def order(request: HttpRequest, number: int) -> JsonResponse:
    """Place an order, or show it."""
    if request.method == "GET":
        shown = Order.objects.filter(number=number).values().first()
        return JsonResponse(shown or {"error": "no order"}, status=200 if shown else 404)
    try:
        given = json.loads(request.body)
        customer, address = int(given["customer"]), str(given["address"])
    except (KeyError, TypeError, ValueError):
        return JsonResponse({"error": "an order needs a customer (a number) and an address"}, status=400)
    # Stored first: the handler reads the row. A client without an answer repeats the request. The repeated
    # post has the same GUID, so the broker keeps one message.
    Order.objects.get_or_create(number=number, defaults={"customer": customer, "address": address})
    orders = session().open_output(ORDERS).typed(Placed)
    try:
        ack = orders.post(Placed(number, customer), guid=derived_guid("order", str(number)), timeout=5)
    except bmq.Error as error:
        return JsonResponse({"error": str(error)}, status=503, headers={"Retry-After": "5"})
    return JsonResponse({"guid": ack.guid}, status=202)


def ready(request: HttpRequest) -> JsonResponse:
    """Report whether the process can post."""
    health = session().health()
    return JsonResponse({"session": str(health)}, status=200 if health.ready else 503)
