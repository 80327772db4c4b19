"""Take orders over HTTP, once for each Idempotency-Key."""

from __future__ import annotations

import json
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt

from orders.models import Order
from postroom.django import outbox


def save_order(cents: int) -> Order:
    """Save an order. Its event, and a message to the warehouse, commit with it."""
    with transaction.atomic():
        order: Order = Order.objects.create(cents=cents)
        outbox.add("warehouse.pick", {"order": order.pk}, key=order.pk)
    return order


@csrf_exempt
def take_order(request: Any) -> JsonResponse:
    """Take an order."""
    order = save_order(json.loads(request.body)["cents"])
    return JsonResponse({"order": order.pk}, status=201)


async def take_order_async(request: Any) -> JsonResponse:
    """Take an order, in an async view: transactions are for sync functions."""
    order = await sync_to_async(save_order)(json.loads(request.body)["cents"])
    return JsonResponse({"order": order.pk}, status=201)


take_order_async.csrf_exempt = True  # type: ignore[attr-defined]  # the decorator takes async views since Django 5.0
