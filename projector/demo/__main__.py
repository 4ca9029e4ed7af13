"""``python -m projector.demo``: says what to install when the ``demo`` extra is missing."""

from __future__ import annotations

import sys

from eventstore.errors import EventStoreError

try:
    from projector.demo.app import app
except ModuleNotFoundError as missing:
    sys.exit(
        f"The demo needs {missing.name}, which is not installed.\n"
        "Install its extra: pip install 'eventstore-langgraph[demo]', or run `make demo`."
    )

if __name__ == "__main__":
    try:
        app(prog_name="python -m projector.demo")
    except EventStoreError as error:
        sys.exit(f"{type(error).__name__}: {error}")
