"""The pages of the shop."""

from django.contrib import admin
from django.urls import path

from orders import views

urlpatterns = [
    path("orders", views.take_order),
    path("async-orders", views.take_order_async),
    path("admin/", admin.site.urls),
]
