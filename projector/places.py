"""What a connection string leads to on this machine: the log behind it, and where its views are kept."""

from __future__ import annotations

import hashlib
import importlib
import os
from pathlib import Path
from typing import cast

from eventstore.config import StoreConfig
from eventstore.connection import FolderPlace, KafkaPlace, where
from eventstore.errors import InvalidConfig
from eventstore.log.base import Log
from eventstore.log.embedded import EmbeddedLog

Place = FolderPlace | KafkaPlace


def folder_of(place: FolderPlace) -> Path:
    """The folder of a store that is not a temporary one."""
    return (place.directory or Path()).expanduser().absolute()


def views_of(place: Place, views: str | Path | None) -> Path:
    """Where views are kept: where the caller says, beside an embedded log, else with the user's data."""
    if views is not None:
        return Path(views).expanduser().absolute()
    if isinstance(place, FolderPlace):
        return folder_of(place) / "views"
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    cluster = hashlib.sha256(",".join(sorted(place.servers)).encode()).hexdigest()[:8]
    return (Path(home) / "eventstore" / f"{place.topic}-{cluster}").expanduser().absolute()


def name_of(place: Place) -> str:
    """One name for all ways to write a place."""
    return where(place) if isinstance(place, KafkaPlace) else os.path.realpath(folder_of(place))


def require(place: Place) -> None:
    """Raise ``InvalidConfig`` for a folder without a store, which opening would make one in."""
    if isinstance(place, FolderPlace) and not (folder_of(place) / "log").is_dir():
        raise InvalidConfig(f"there is no store in {folder_of(place)}; give the folder that was opened")


def as_it_is(place: Place) -> Place:
    """The place for one who only looks: a topic that is not there is not made."""
    if isinstance(place, FolderPlace):
        return place
    return place.model_copy(update={"options": place.options.model_copy(update={"create": False})})


def open_log(place: Place, config: StoreConfig) -> Log:
    """The log of a place. Raises ``InvalidConfig`` where it cannot be made, or lacks its client."""
    if isinstance(place, FolderPlace):
        return open_embedded(folder_of(place), config)
    try:
        # Only who names a topic needs the Kafka client.
        kafka_log = importlib.import_module("eventstore.log.kafka")
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            f"a log on Kafka needs {error.name}: pip install 'eventstore-langgraph[kafka]'"
        ) from error
    return cast(Log, kafka_log.KafkaLog(place))


def open_embedded(directory: Path, config: StoreConfig) -> EmbeddedLog:
    """The embedded log of a store's folder, which is made when missing."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfig(
            f"the store's folder {directory} cannot be made: {error.strerror}. Give another"
        ) from error
    return EmbeddedLog.open(directory / "log", segment_bytes=config.segment_bytes)
