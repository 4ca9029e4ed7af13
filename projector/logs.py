"""Log lines of a service: one JSON document each for machines, or plain text for people."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final, Literal

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """A record as one line of JSON; what was given as ``extra`` becomes fields of it."""

    def format(self, record: logging.LogRecord) -> str:
        """Time (UTC), level, logger and message come first."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


class PlainLines(logging.Formatter):
    """A record as one line of text, its extra fields behind it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """As the base class does, with ``name=value`` for every extra field."""
        extra = "".join(f" {name}={value}" for name, value in vars(record).items() if name not in _OWN)
        return super().format(record) + extra


def set_up(form: Literal["json", "text"], level: str) -> None:
    """Send all log lines of this process to standard error in one form."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Its lines are about connections that it makes anew by itself; what matters is raised to us.
    logging.getLogger("kafka").setLevel(logging.ERROR)
