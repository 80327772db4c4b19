"""Forms as multipart/form-data: their fields, and their bytes without the boundary, which changes with each attempt."""

from __future__ import annotations

import re

MULTIPART = "multipart/form-data"
_MOST = 200
"""Characters of a boundary: frameworks take more than the standard's 70."""
_PARAMETER = re.compile(r"""\s*;\s*([!#$%&'*+.^_`|~\w-]+)=("(?:[^"\\]|\\.)*"|[^;"\s]*)""", re.ASCII)
_BOUNDARY = re.compile(r"[ -~]*[!-~]")


def without_boundary(content_type: str, body: bytes) -> bytes:
    """The same bytes for the same parts, whatever the boundary; different bytes for different parts.

    Returns the body itself if it is not a well-formed form.
    """
    pieces = _pieces(content_type, body)
    return body if pieces is None else b"".join(b"%d:%b" % (len(piece), piece) for piece in pieces)


def field_values(content_type: str, body: bytes, field: str) -> list[bytes]:
    """The values of a field that is not a file; none if the body is not a well-formed form."""
    _before, *parts, _after = _pieces(content_type, body) or [b"", b""]
    read = (_part(part) for part in parts)
    return [value for name, value in read if name == field]


def _pieces(content_type: str, body: bytes) -> list[bytes] | None:
    """What stands before, between and after the boundary lines of a form; None if that is not certain.

    It is not certain if another line begins like one of them: some frameworks take it for a boundary.
    """
    boundary = _boundary(content_type)
    if boundary is None:
        return None
    begin = rb"(?:\A|\r\n)--" + re.escape(boundary)
    lines = list(re.finditer(begin + rb"(--)?[ \t]*(?=\r\n|\Z)", body))
    ends = [line[1] is not None for line in lines]
    if not any(ends) or ends.index(True) != len(lines) - 1 or len(re.findall(begin, body)) != len(lines):
        return None
    starts = [0, *(line.end() for line in lines)]
    return [
        body[start:stop] for start, stop in zip(starts, [*(line.start() for line in lines), len(body)], strict=True)
    ]


def _boundary(content_type: str) -> bytes | None:
    kind, parameters = _parameters(content_type)
    found = parameters.get("boundary", "")
    if kind != MULTIPART or len(found) > _MOST or not _BOUNDARY.fullmatch(found):
        return None
    return found.encode("ascii")


def _part(part: bytes) -> tuple[str | None, bytes]:
    """The name of a part (None if it has none or is a file), and its content."""
    head, _, content = part.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        name, _, value = line.decode("utf-8", "replace").partition(":")
        if name.strip().lower() == "content-disposition":
            kind, parameters = _parameters(value)
            is_file = "filename" in parameters or "filename*" in parameters
            return (None if is_file or kind != "form-data" else _unescaped(parameters.get("name"))), content
    return None, content


def _parameters(value: str) -> tuple[str, dict[str, str]]:
    """A header's value before the first semicolon, and its parameters; nothing if they are malformed."""
    kind, semicolon, rest = value.partition(";")
    found, end = {}, 0
    text = (semicolon + rest).rstrip().rstrip(";")
    while end < len(text):
        one = _PARAMETER.match(text, end)
        if one is None or one[1].lower() in found:
            return "", {}
        found[one[1].lower()] = re.sub(r"\\(.)", r"\1", one[2][1:-1]) if one[2].startswith('"') else one[2]
        end = one.end()
    return kind.strip().lower(), found


def _unescaped(name: str | None) -> str | None:
    """A field's name, without the escapes by which browsers write quotes and line ends."""
    return None if name is None else name.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")
