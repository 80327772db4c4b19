"""What a handler finds of its own keyed request: its key, and how to record the response in its own transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.web.idempotency.recorded_responses import as_response

if TYPE_CHECKING:
    from postroom.idempotency import Ledger
    from postroom.rules.replay import Entry, Response, Run, Start
    from postroom.web.idempotency.policy import Policy

ENVIRON_KEY = "postroom.idempotency"
"""The key of a `KeyedRequest` in the ASGI scope, the WSGI environ and Django's ``request.META``."""


class KeyedRequest:
    """A request that runs under an idempotency key."""

    def __init__(self, run: Run, policy: Policy, ledger: Ledger) -> None:
        self.entry: Entry = run.entry
        self.start: Start = run.start
        """Why it runs. After `Start.ABANDONED`, it is unknown what an earlier run did outside the database."""
        self.recorded: Response | None = None
        """What the handler has recorded. Whether its transaction was committed is not known here."""
        self.owed: Response | None = None
        """What was answered, but could not be recorded yet."""
        self.failed = False
        """Set it if the framework turns an exception into a response: one of 500 or more is then not recorded."""
        self._policy = policy
        self._ledger = ledger

    @property
    def key(self) -> str:
        """The idempotency key, for example to pass on to a payment provider."""
        return self.entry.key

    @property
    def taken_over(self) -> bool:
        """Whether there was an earlier run of the request, which failed or died."""
        return self.start is not self.start.NEW

    def finish(self, connection: object, answer: object) -> None:
        """Record the answer in the connection's open transaction, so that it commits with the handler's writes.

        The answer is a response of Starlette, FastAPI, Flask or Django that is not a stream, or a
        `postroom.idempotency.Response`. If it is larger than `max_response_bytes`, only the fact that it was given is
        recorded. The connection must lead to the ledger's database. Commit, then return the same answer.

        Raises `LeaseLost` if another run has taken over, or if ``add(ledger=keyed.entry)`` has left the request to a
        message: let the transaction roll back. Raises `InvalidEntry` or `UnusableConnection` if nothing was written.
        """
        response = self._policy.record(as_response(answer))
        self._ledger.finish(connection, self.entry, response)
        self.recorded = response

    async def afinish(self, connection: object, answer: object) -> None:
        """`finish` for an async connection."""
        response = self._policy.record(as_response(answer))
        await self._ledger.afinish(connection, self.entry, response)
        self.recorded = response

    def hand_over(self, connection: object, answer: object) -> None:
        """Record the answer to a request whose work is done later, such as a 202, in the connection's transaction.

        ``add(ledger=keyed.entry)`` leaves the request to a message, with or without this call. The answer is replayed
        until the relay has confirmed the entry; from then on, the outcome of the message is. Otherwise as `finish`.
        """
        response = self._policy.record(as_response(answer))
        self._ledger.hand_over(connection, self.entry, response)
        self.recorded = response

    async def ahand_over(self, connection: object, answer: object) -> None:
        """`hand_over` for an async connection."""
        response = self._policy.record(as_response(answer))
        await self._ledger.ahand_over(connection, self.entry, response)
        self.recorded = response

    @property
    def needs_renewal(self) -> bool:
        """Whether to renew the lease: not after the handler's transaction has locked the entry or ended it."""
        return self.recorded is None

    def may_commit(self, response: Response) -> bool:
        """Whether the handler has recorded such a response, in a transaction that may end only after it was sent."""
        return self.recorded is not None and self.recorded.status == response.status

    def is_recorded_as(self, response: Response) -> bool:
        """Whether the handler has recorded this response, apart from headers that were added on its way out."""
        return self.recorded is not None and (self.recorded.status, self.recorded.body) == (
            response.status,
            response.body,
        )
