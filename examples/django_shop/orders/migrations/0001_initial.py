"""Orders and bills."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first tables."""

    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("cents", models.IntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Bill",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("order_id", models.BigIntegerField()),
                ("cents", models.IntegerField()),
            ],
        ),
    ]
