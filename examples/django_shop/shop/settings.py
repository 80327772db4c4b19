"""Settings of the shop. Its database and its broker come from the environment."""

import os
from pathlib import Path

import django

DATABASES = {
    "default": {
        "ENGINE": f"django.db.backends.{os.environ.get('SHOP_ENGINE', 'sqlite3')}",
        "NAME": os.environ.get("SHOP_DATABASE", str(Path(__file__).parent.parent / "shop.sqlite3")),
        "HOST": os.environ.get("SHOP_DATABASE_HOST", ""),
        "PORT": os.environ.get("SHOP_DATABASE_PORT", ""),
        "USER": os.environ.get("SHOP_DATABASE_USER", ""),
        "PASSWORD": os.environ.get("SHOP_DATABASE_PASSWORD", ""),
    }
}
if DATABASES["default"]["ENGINE"].endswith("mysql"):  # without a compiler
    import pymysql

    pymysql.version_info = (2, 2, 1, "final", 0)
    pymysql.install_as_MySQLdb()

POSTROOM = {"BROKER": os.environ.get("SHOP_BROKER", "nats://127.0.0.1:4222"), "NOTIFY": True}
POSTROOM_IDEMPOTENCY = {"required": ["POST /orders"]}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "postroom.django",
    "orders",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "postroom.web.django.IdempotencyMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "shop.urls"
ASGI_APPLICATION = "shop.asgi.application"
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "only for this example")
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
USE_TZ = True
if django.VERSION < (5, 0):
    FORM_RENDERER = "django.forms.renderers.DjangoDivFormRenderer"
