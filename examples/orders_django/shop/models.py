# SPDX-License-Identifier: Apache-2.0
"""Orders in the database."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order, and whether it was shipped."""

    number: models.PositiveBigIntegerField[int, int] = models.PositiveBigIntegerField(primary_key=True)
    customer: models.PositiveIntegerField[int, int] = models.PositiveIntegerField()
    address: models.CharField[str, str] = models.CharField(max_length=500)
    shipped: models.BooleanField[bool, bool] = models.BooleanField(default=False)
