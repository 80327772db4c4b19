"""Messages and dead letters in Django's admin: look at them, requeue and discard.

Pages are read with `postroom.admin.Admin`, from one position to the next: they count nothing, however large the tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from postroom.admin import Filter, State
from postroom.django.models import DeadLetter, Message
from postroom.django.operating import DjangoAdmin
from postroom.errors import InvalidSetting, MessageNotFound, PostroomError

if TYPE_CHECKING:
    from postroom.admin import ActResult, MessageDetails

PAGE = 50
LONGEST_PAYLOAD = 100_000
"""Characters of a payload that are shown."""


class _Pages(admin.ModelAdmin):
    """A list and a page for each message, without the ORM."""

    filters: ClassVar[dict[str, str]] = {}
    """The names of the list's filters, and what people read."""

    def has_add_permission(self, request: Any) -> bool:
        """Messages are added by programs."""
        del request
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Messages never change."""
        del request, obj
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Messages are discarded, which is on record."""
        del request, obj
        return False

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """The list."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            return self._act(request)
        asked = {name: request.GET.get(name, "").replace("\0", "") for name in self.filters}  # no text has a NUL
        given = {name: value for name, value in asked.items() if value}
        try:
            page = self._page(given, _position(request.GET.get("before")))
        except PostroomError as error:
            messages.error(request, str(error))
            page = None
        following = page and page.next and f"?{urlencode({**given, 'before': page.next})}"
        context = {
            "title": f"Postroom: {self.opts.verbose_name_plural}",
            "page": page,
            "next_page": following,
            "filters": [(name, words, given.get(name, "")) for name, words in self.filters.items()],
            "states": [state.value for state in State],
            "acts": self._acts(request),
        }
        return self._rendered(request, f"{self.opts.model_name}_list.html", context, extra_context)

    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """One message. Its payload is shown, and that is on record, if it is asked for by POST."""
        del form_url
        if not self.has_view_permission(request):
            raise PermissionDenied
        may_see = request.user.has_perm("postroom.view_message_payload")
        wants_payload = request.method == "POST" and "payload" in request.POST
        if wants_payload and not may_see:
            raise PermissionDenied
        try:
            with DjangoAdmin() as operator:
                details = operator.message(object_id, payload=wants_payload, headers=wants_payload)
                if wants_payload:
                    operator.record_view(details.id, actor=_actor(request), what="payload and headers")
        except (MessageNotFound, InvalidSetting) as error:
            raise Http404(str(error)) from error
        except PostroomError as error:
            messages.error(request, str(error))
            return HttpResponseRedirect(reverse("admin:index", current_app=self.admin_site.name))
        context = {
            "title": f"Message {details.id}",
            "details": details,
            "payload": _payload(details),
            "may_see_payload": may_see,
        }
        return self._rendered(request, "message.html", context, extra_context)

    def _page(self, given: dict[str, str], before: int | None) -> Any:
        raise NotImplementedError

    def _acts(self, request: Any) -> list[str]:
        """What this user may do to the messages of the list."""
        del request
        return []

    def _act(self, request: Any) -> Any:
        del request
        raise PermissionDenied

    def _rendered(self, request: Any, template: str, context: dict[str, Any], extra: Any) -> Any:
        request.current_app = self.admin_site.name
        every = {**self.admin_site.each_context(request), "opts": self.opts, "has_view_permission": True}
        return TemplateResponse(request, f"admin/postroom/{template}", {**every, **context, **(extra or {})})


@admin.register(Message)
class MessageAdmin(_Pages):
    """Messages, sent or not, newest first."""

    filters: ClassVar[dict[str, str]] = {
        "status": "Status",
        "queue": "Queue",
        "topic": "Topic",
        "type": "Type",
        "key": "Key",
        "error": "Text of the error",
    }

    def _page(self, given: dict[str, str], before: int | None) -> Any:
        with DjangoAdmin() as operator:
            return operator.messages(**given, limit=PAGE, before=before)  # type: ignore[arg-type]  # all are texts


@admin.register(DeadLetter)
class DeadLetterAdmin(_Pages):
    """Dead letters, newest first, which may be requeued and discarded."""

    filters: ClassVar[dict[str, str]] = {"queue": "Queue", "topic": "Topic", "key": "Key", "code": "Code"}

    def _page(self, given: dict[str, str], before: int | None) -> Any:
        with DjangoAdmin() as operator:
            return operator.dead_letters(Filter(**given), limit=PAGE, before=before)  # type: ignore[arg-type]  # as above

    def _acts(self, request: Any) -> list[str]:
        return [act for act in ("requeue", "discard") if request.user.has_perm(f"postroom.{act}_deadletter")]

    def _act(self, request: Any) -> Any:
        act, ids = request.POST.get("action", ""), request.POST.getlist("id")
        if act not in self._acts(request):
            raise PermissionDenied
        if not ids:
            messages.warning(request, "No dead letter is selected.")
        elif act == "discard" and "confirmed" not in request.POST:
            context = {"title": "Discard dead letters", "ids": ids, "reason": request.POST.get("reason", "")}
            return self._rendered(request, "discard.html", context, None)
        else:
            self._do(request, act, ids)
        return HttpResponseRedirect(reverse("admin:postroom_deadletter_changelist", current_app=self.admin_site.name))

    def _do(self, request: Any, act: str, ids: list[str]) -> None:
        try:
            with DjangoAdmin() as operator:
                do = operator.requeue if act == "requeue" else operator.discard
                done = do(Filter(ids=ids), actor=_actor(request), reason=request.POST.get("reason", ""))
        except PostroomError as error:
            messages.error(request, str(error))
        else:
            self._tell(request, done)

    def _tell(self, request: Any, done: ActResult) -> None:
        done_to = {"requeue": "requeued", "discard": "discarded"}
        messages.success(request, f"{done.count} {done_to.get(done.action, done.action)}")
        for left in done.refused:
            messages.warning(request, f"{left.id} was left alone: it is {left.status.value}")


def _actor(request: Any) -> str:
    """Who acts, for the audit."""
    return f"django:{request.user.get_username()}"


def _position(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < len(str(2**63)) else None


def _payload(details: MessageDetails) -> str | None:
    return None if details.payload is None else details.payload.decode("utf-8", "replace")[:LONGEST_PAYLOAD]
