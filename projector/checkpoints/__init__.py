"""The view of checkpoints: what a replay of their log makes of it, in RocksDB."""
