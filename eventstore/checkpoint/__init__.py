"""LangGraph's checkpointer on a log beside the memories: threads, interrupts and time travel."""

from eventstore.checkpoint.saver import EventSaver
from eventstore.checkpoint.sealing import FolderKeys, ThreadKeys

__all__ = ["EventSaver", "FolderKeys", "ThreadKeys"]
