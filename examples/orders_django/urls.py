# SPDX-License-Identifier: Apache-2.0
"""Addresses of the views."""

from django.urls import path
from shop import views

urlpatterns = [path("orders/<int:number>", views.order), path("ready", views.ready)]
