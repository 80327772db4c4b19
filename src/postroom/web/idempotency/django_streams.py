"""Streams of Django, sync and async: it is recorded at their end that there was a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from postroom.web.idempotency.recorded_responses import is_endless

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from postroom.rules.replay import Response
    from postroom.web.idempotency.sync_exchange import KeyedRun


def record_at_the_end(run: KeyedRun, answer: Any, head: Response) -> None:
    """Let the answer, a `StreamingHttpResponse`, tell the run when it has come to its end, or is closed before that.

    We close before Django closes the source of the parts, of which a rest may still be wanted.
    """
    if answer.is_async:
        answer.streaming_content = _recorded(run, head, answer.streaming_content)
        answer.close = _both(lambda: run.conclude_stream(head), answer.close)
    else:
        stream = run.streamed(head, iter(answer.streaming_content))
        answer.streaming_content = stream
        answer.close = _both(stream.close, answer.close)


async def _recorded(run: KeyedRun, head: Response, parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The parts as they come; before the last one it is recorded that there was a response.

    The parts of a stream of events are wanted at once. Where the client goes, Django cancels the stream: it counts as
    done when the response is closed.
    """
    late: list[bytes] = []
    try:
        async for part in parts:
            late.append(part)
            while len(late) > (0 if is_endless(head.headers) else 1):
                yield late.pop(0)
    except Exception:
        await sync_to_async(run.give_up)()
        raise
    await sync_to_async(run.conclude_stream)(head)
    for part in late:
        yield part


def _both(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    def close() -> None:
        try:
            first()
        finally:
            then()

    return close
