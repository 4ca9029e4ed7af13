"""Measurements a user can repeat: ``python -m benchmarks.run``, and ``locomo.py`` on real conversations."""
