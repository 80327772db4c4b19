"""Sagas: steps with compensations, run by a relay, undone in reverse order if one fails."""

from postroom.errors import Refused
from postroom.saga.context import SagaContext, SagaFailure
from postroom.saga.replies import areply, reply
from postroom.saga.saga import Saga

__all__ = ["Refused", "Saga", "SagaContext", "SagaFailure", "areply", "reply"]
