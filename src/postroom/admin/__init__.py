"""Operate Postroom from code: status, messages, dead letters, sagas, two-phase commits, audit.

`Admin` is sync, `AsyncAdmin` async.

::

    with Admin("postgresql://…/shop") as admin:
        for letter in admin.dead_letters(Filter(topic="orders.created")):
            print(letter.id, letter.error_message)
        admin.requeue(Filter(code="TIMEOUT"), actor="ada", reason="the broker is back")
"""

from postroom.admin.admin import Admin
from postroom.admin.async_admin import AsyncAdmin
from postroom.admin.cdc_steps import CdcSetUp
from postroom.admin.details import Delivery, Lease, MessageDetails, Why
from postroom.admin.flow import Flow, FlowBucket
from postroom.admin.import_steps import Imported, Sample
from postroom.admin.jsonable import as_json
from postroom.admin.replay import UNCHANGED, Replayed, Unchanged
from postroom.admin.results import ActResult, Page, Refusal, Refused
from postroom.admin.saga_details import NextStep, SagaDetails, SagaStep
from postroom.admin.saga_results import RefusedSaga, SagaActResult, SagaFork, SagaRef, SagaTotal
from postroom.admin.timeline import TimelineEvent, TimelineKind
from postroom.admin.transaction_steps import TransactionDetails
from postroom.rules.bounded import BoundedCount
from postroom.rules.flow import FlowKind
from postroom.rules.importing.layouts import Format, Left
from postroom.rules.lifecycle import State
from postroom.rules.saga_plan import Direction, Kind, PlannedStep, StepOutcome
from postroom.rules.saga_state import SagaState
from postroom.rules.stream.modes import Mode
from postroom.rules.twophase_plan import Decision
from postroom.rules.twophase_state import TransactionState
from postroom.rules.why_not_sent import WhyNotSent
from postroom.store.admin.audit import AuditEntry
from postroom.store.admin.dead_letter_groups import DeadLetterGroup, DeadLetterGroups
from postroom.store.admin.dead_letters import DeadLetter
from postroom.store.admin.expired_leases import Released
from postroom.store.admin.inbox_ledger_lookup import InboxMark, LedgerEntry
from postroom.store.admin.message_filter import ALL, Filter
from postroom.store.admin.message_list import ListedMessage
from postroom.store.admin.message_lookup import Blocker, Receipt
from postroom.store.admin.overview import Overview, QueueOverview, SagaOverview
from postroom.store.admin.saga_filter import EVERY_SAGA, SagaFilter
from postroom.store.admin.saga_lookup import PendingEvent
from postroom.store.admin.sagas import ListedSaga, SagaCount
from postroom.store.admin.selection import Count, Progress
from postroom.store.admin.status import QueueStatus, Status, Worker
from postroom.store.admin.transactions import ListedTransaction, RecoveryDelivery, TransactionCount
from postroom.store.outbox.held_targets import HeldTarget
from postroom.store.stream.slots import Server, Slot
from postroom.store.stream.stream_status import StreamStatus
from postroom.telemetry.events import Cleaned

__all__ = [
    "ALL",
    "EVERY_SAGA",
    "UNCHANGED",
    "ActResult",
    "Admin",
    "AsyncAdmin",
    "AuditEntry",
    "Blocker",
    "BoundedCount",
    "CdcSetUp",
    "Cleaned",
    "Count",
    "DeadLetter",
    "DeadLetterGroup",
    "DeadLetterGroups",
    "Decision",
    "Delivery",
    "Direction",
    "Filter",
    "Flow",
    "FlowBucket",
    "FlowKind",
    "Format",
    "HeldTarget",
    "Imported",
    "InboxMark",
    "Kind",
    "Lease",
    "LedgerEntry",
    "Left",
    "ListedMessage",
    "ListedSaga",
    "ListedTransaction",
    "MessageDetails",
    "Mode",
    "NextStep",
    "Overview",
    "Page",
    "PendingEvent",
    "PlannedStep",
    "Progress",
    "QueueOverview",
    "QueueStatus",
    "Receipt",
    "RecoveryDelivery",
    "Refusal",
    "Refused",
    "RefusedSaga",
    "Released",
    "Replayed",
    "SagaActResult",
    "SagaCount",
    "SagaDetails",
    "SagaFilter",
    "SagaFork",
    "SagaOverview",
    "SagaRef",
    "SagaState",
    "SagaStep",
    "SagaTotal",
    "Sample",
    "Server",
    "Slot",
    "State",
    "Status",
    "StepOutcome",
    "StreamStatus",
    "TimelineEvent",
    "TimelineKind",
    "TransactionCount",
    "TransactionDetails",
    "TransactionState",
    "Unchanged",
    "Why",
    "WhyNotSent",
    "Worker",
    "as_json",
]
