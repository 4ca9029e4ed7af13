"""The demonstration: an agent learns in one process and remembers in another.

``python -m projector.demo`` runs it; it needs the ``demo`` extra. It uses the store as any
user would, through ``from eventstore import EventStore``, and nothing else of the project.
"""
