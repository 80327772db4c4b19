"""Tasks of Celery, Dramatiq and Taskiq as messages: one small module for each, imported when it is used."""
