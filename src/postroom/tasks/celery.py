"""Celery's tasks: check a call as `apply_async` does, and write its arguments with the app's serializer."""

from __future__ import annotations

import numbers
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery.canvas import Signature
from kombu.exceptions import SerializerNotInstalled
from kombu.serialization import dumps, prepare_accept_content

from postroom.errors import InvalidMessage, PayloadNotEncodable
from postroom.tasks.calls import Arguments, TaskCall, arguments, topic_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.tasks.calls import Mask

LIBRARY = "celery"
ENCODING = "encoding"
"""Kombu's name for how the payload is encoded, beside the options of `apply_async`."""
_WORKFLOWS = ("chain", "group", "chord")
_OF_A_SENDER = ("producer", "publisher", "connection", "router", "result_cls", "add_to_parent", "task_type")
_OF_THE_RELAY = ("retry", "retry_policy")
_LONGEST_DELAY = 100 * 366 * 86_400.0


def call_of(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: dict[str, Any], mask: Mask | None
) -> TaskCall:
    """The call of a task or signature. Raises `InvalidMessage`.

    ``remote=True`` is for a signature of a task that only other services' workers know.
    """
    remote = options.pop("remote", False)
    _check_options(options)
    name, app, known, given, options = _resolved(task, args, kwargs, options)
    if known is None and not remote:
        raise InvalidMessage(
            f"there is no task {name!r} in the app {app.main or app!r}: import its module, or give remote=True if only "
            "the workers of another service have it"
        )
    _check_arguments(name, known, given)
    given = given.masked(mask, topic_of(LIBRARY, name))
    options = _with_defaults(name, app, known, given, options)
    serializer = options.pop("serializer", None) or app.conf.task_serializer
    if known is not None and serializer != "pickle":
        given = _dumped(known, given)
    content_type, encoding, payload = _serialized(name, app, given, serializer)
    return TaskCall(
        library=LIBRARY,
        name=name,
        payload=payload,
        content_type=content_type,
        options={"serializer": serializer, ENCODING: encoding} | _absolute(app, name, options),
    )


def _check_options(options: Mapping[str, Any]) -> None:
    for name in options:
        if name in _OF_A_SENDER:
            raise InvalidMessage(
                f"option {name!r} is for tasks that are sent at once: leave it out, a relay sends this"
            )
        if name in _OF_THE_RELAY:
            raise InvalidMessage(f"option {name!r}: leave it out, the relay retries by its own settings")


def _resolved(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: dict[str, Any]
) -> tuple[str, Any, Any, Arguments, dict[str, Any]]:
    """A task's name and app, the task itself if the app has it, arguments and options."""
    if not isinstance(task, Signature):
        app = getattr(task, "app", None)
        if not isinstance(getattr(task, "name", None), str) or app is None:
            raise InvalidMessage(f"task is a {type(task).__name__} of Celery: give a task or a signature")
        return task.name, app, task, Arguments(tuple(args), dict(kwargs)), options
    workflow = task.subtask_type
    if workflow in _WORKFLOWS:
        raise InvalidMessage(
            f"the {workflow} cannot be stored as one message: write a task that starts it, and give that"
        )
    merged = task.clone(tuple(args), dict(kwargs), **options)
    name, app = merged.task, merged.app
    _check_options(merged.options)
    return name, app, app.tasks.get(name), arguments(merged.args, merged.kwargs, name), dict(merged.options)


def _check_arguments(name: str, task: Any, given: Arguments) -> None:
    check = getattr(task, "__header__", None) if getattr(task, "typing", False) else None
    if check is None:
        return
    try:
        check(*given.args, **given.kwargs)
    except TypeError as error:
        raise InvalidMessage(f"the task {name!r} cannot be called like this: {error}") from None


def _with_defaults(name: str, app: Any, task: Any, given: Arguments, options: dict[str, Any]) -> dict[str, Any]:
    """The options with what task and current task add to them."""
    found = dict(options)
    if task is not None:
        defaults = {option: value for option, value in task._get_exec_options().items() if value is not None}  # noqa: SLF001 - as apply_async does
        found = defaults | {"ignore_result": task.ignore_result} | found
        shadow = found.get("shadow") or task.shadow_name(given.args, given.kwargs, found)
        if shadow:
            found["shadow"] = shadow
    parent = app.current_worker_task
    if parent:
        found.setdefault("root_id", parent.request.root_id or parent.request.id)
        found.setdefault("parent_id", parent.request.id)
    for place in ("queue", "exchange"):
        if place in found and not isinstance(found[place], str):
            raise InvalidMessage(f"option {place!r} of the task {name!r} is an object: give its name")
    return {option: value for option, value in found.items() if value is not None}


def _absolute(app: Any, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with times instead of spans: a relay may send the task much later."""
    countdown = options.pop("countdown", None)
    if countdown is not None:
        if "eta" in options:
            raise InvalidMessage(f"the task {name!r} has both countdown and eta: give one of them")
        options["eta"] = _after(name, "countdown", countdown)
    for option in ("eta", "expires"):
        value = options.get(option)
        if isinstance(value, datetime):
            zoned = value if value.tzinfo is not None else value.replace(tzinfo=app.timezone)
            options[option] = zoned.isoformat()
        elif value is not None and not isinstance(value, str):
            options[option] = _after(name, option, value)
        elif value is not None:
            options[option] = _moment(name, option, value)
    return options


def _after(name: str, option: str, seconds: Any) -> str:
    is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if not is_number or not abs(float(seconds)) <= _LONGEST_DELAY:
        raise InvalidMessage(f"option {option!r} of the task {name!r} is {seconds!r}: give seconds or a time")
    moment = datetime.now(UTC) + timedelta(seconds=float(seconds))
    return moment.isoformat()


def _moment(name: str, option: str, text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidMessage(f"option {option!r} of the task {name!r} is {text!r}: give a datetime with a time zone")
    return text


def _dumped(task: Any, given: Arguments) -> Arguments:
    """Pydantic's models as plain values, for tasks that are declared to take them (``pydantic=True``)."""
    dump = getattr(task, "_dump_pydantic_arguments", None)
    if dump is None:
        return given
    args, kwargs = dump(given.args, given.kwargs)
    return Arguments(tuple(args), dict(kwargs))


def _serialized(name: str, app: Any, given: Arguments, serializer: str) -> tuple[str, str, bytes]:
    try:
        content_type, encoding, body = dumps((given.args, given.kwargs), serializer)
    except SerializerNotInstalled:
        raise InvalidMessage(
            f"the task {name!r} has the serializer {serializer!r}, which Celery does not know"
        ) from None
    except Exception as error:  # noqa: BLE001 - whatever a serializer raises; its text may quote a value
        cause = error.__cause__ or error.__context__ or error
        raise PayloadNotEncodable(
            f"the arguments of the task {name!r} cannot be written by the serializer {serializer!r} "
            f"({type(cause).__name__}): give values that it knows"
        ) from None
    if content_type not in accepted(app):
        raise InvalidMessage(
            f"the task {name!r} has the serializer {serializer!r}, and the app does not accept {content_type}: add it "
            "to accept_content, or use json"
        )
    return content_type, encoding, body.encode() if isinstance(body, str) else body


def accepted(app: Any) -> set[str]:
    """The content types that the app takes, by their full names."""
    return set(prepare_accept_content(app.conf.accept_content))
