# SPDX-License-Identifier: Apache-2.0
"""The table of orders."""

from collections.abc import Sequence
from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Creates the table."""

    initial = True
    operations: ClassVar[Sequence[Operation]] = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("number", models.PositiveBigIntegerField(primary_key=True, serialize=False)),
                ("customer", models.PositiveIntegerField()),
                ("address", models.CharField(max_length=500)),
                ("shipped", models.BooleanField(default=False)),
            ],
        )
    ]
