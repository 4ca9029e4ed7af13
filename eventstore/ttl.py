"""Expiry: settings, refreshes on read, and the sweep.

Time to live is in minutes, as LangGraph has it. An expiry is a fact of the log: a put carries
its ttl, a refresh is a touch event, and a sweep appends one expire event per memory, about the
version and expiry it saw. So a replay expires the same memories, whatever its clock says.

Refreshes are coalesced: those of a fifth of a second go into one append, and one that would
move an expiry by less than a hundredth of the ttl is not worth an event.
"""

from __future__ import annotations

import concurrent.futures
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from langgraph.store.base import TTLConfig

from eventstore.errors import EventStoreError, InvalidConfig, InvalidInput, InvalidType, StoreClosed
from eventstore.views import Row

log = logging.getLogger("eventstore.ttl")

MINUTE_US: Final = 60_000_000
FLUSH_SECONDS: Final = 0.2
COALESCE: Final = 100
"""A refresh is skipped when it gains less than the ttl divided by this."""
SWEEP_MINUTES: Final = 5.0
MAX_MINUTES: Final = 1e9
"""About 1,900 years: beyond what a datetime could still show."""


def now_us() -> int:
    """The clock of this process, µs since the epoch."""
    return time.time_ns() // 1000


def check_ttl(ttl: object, where: str = "ttl") -> float | None:
    """Minutes to live. Raises ``InvalidInput`` or ``InvalidType`` unless positive and finite."""
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
        raise InvalidType(f"{where} is a number of minutes or None, not {type(ttl).__name__}")
    if not (math.isfinite(ttl) and 0 < ttl <= MAX_MINUTES):
        raise InvalidInput(f"{where} must be a positive, finite number of minutes below 1e9; got {ttl!r}")
    return float(ttl)


def check_config(config: Mapping[str, Any] | None) -> TTLConfig | None:
    """LangGraph's ttl settings, checked. Raises ``InvalidConfig`` or ``InvalidType``."""
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise InvalidType(f"ttl takes a mapping such as {{'default_ttl': 60}}, not {type(config).__name__}")
    known = ("refresh_on_read", "default_ttl", "sweep_interval_minutes", "omit_expired")
    for name, value in config.items():
        if name not in known:
            raise InvalidConfig(f"ttl[{name!r}] is no setting; known are {known}")
        if value is None:
            continue
        if name in ("default_ttl", "sweep_interval_minutes"):
            check_ttl(value, f"ttl[{name!r}]")
        elif not isinstance(value, bool):
            raise InvalidType(f"ttl[{name!r}] is True or False, not {type(value).__name__}")
    kept = {name: value for name, value in config.items() if value is not None or name == "default_ttl"}
    return cast(TTLConfig, kept)


Touched = tuple[bytes, int, int]
"""Key, version and new expiry (µs since the epoch) of a refreshed memory."""


class Touches:
    """Refreshes that reads asked for and the log does not have yet."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._lock = threading.Lock()
        self._pending: dict[bytes, tuple[int, int]] = {}
        self._timer: threading.Timer | None = None

    def note(self, row: Row) -> None:
        """A memory with a ttl was read and is to live its ttl from now."""
        wanted = now_us() + row.ttl_us
        if wanted - self.expiry(row) < row.ttl_us // COALESCE:
            return
        with self._lock:
            self._pending[row.key] = (row.version, wanted)
            if self._timer is None:
                self._timer = threading.Timer(FLUSH_SECONDS, self._elapsed)
                self._timer.daemon = True
                self._timer.start()

    def expiry(self, row: Row) -> int:
        """When a memory expires, refreshes not yet in the log included; 0 for never."""
        pending = self._pending.get(row.key)
        if pending is None or pending[0] != row.version:
            return row.expires_us
        return max(pending[1], row.expires_us)

    def waiting(self, keys: Iterable[bytes] | None = None) -> list[Touched]:
        """Key, version and new expiry of pending refreshes, of these keys or of all."""
        if not self._pending:
            return []
        with self._lock:
            chosen = self._pending if keys is None else [key for key in keys if key in self._pending]
            return [(key, *self._pending[key]) for key in chosen]

    def done(self, touched: Iterable[Touched]) -> None:
        """These refreshes are in the log; newer ones of the same keys stay pending."""
        with self._lock:
            for key, version, expires in touched:
                if self._pending.get(key) == (version, expires):
                    del self._pending[key]

    def stop(self) -> None:
        """Cancel the coming flush."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _elapsed(self) -> None:
        with self._lock:
            self._timer = None
        try:
            self._flush()
        except StoreClosed:
            pass
        except EventStoreError:
            # Refreshes stay pending: the next read of any memory starts another flush.
            log.warning(
                "refreshed expiries could not be written; they are kept and tried again", exc_info=True
            )


class Sweeper:
    """Sweeps in the background, one daemon thread, as PostgresStore's sweeper does."""

    def __init__(self, sweep: Callable[[], int], config: TTLConfig | None) -> None:
        self._sweep = sweep
        self._config = config
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, interval_minutes: float | None) -> concurrent.futures.Future[None]:
        """Sweep every interval, the first time after one. Cancelling the future stops it."""
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        if not self._config:
            future.set_result(None)
            return future
        minutes = check_ttl(interval_minutes, "sweep_interval_minutes")
        minutes = minutes or self._config.get("sweep_interval_minutes") or SWEEP_MINUTES
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._stop = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._stop, minutes * 60), name="eventstore-sweeper", daemon=True
                )
                self._thread.start()
            stop = self._stop
        future.add_done_callback(lambda done: stop.set() if done.cancelled() else None)
        return future

    def stop(self, timeout: float | None = None) -> bool:
        """Whether the thread is gone within ``timeout`` seconds."""
        with self._lock:
            thread = self._thread
            self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
            if thread.is_alive():
                return False
        return True

    def _run(self, stop: threading.Event, seconds: float) -> None:
        while not stop.wait(seconds):
            try:
                self._sweep()
            except StoreClosed:
                return
            except EventStoreError:
                log.warning("a sweep failed; the next one tries again", exc_info=True)
