"""Scans of RocksDB for few rows among many: what is expected makes them faster and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from projector.rocks import scan

ROWS = {f"{group}{number:03}".encode(): b"x%d" % (number % 7) for group in "abc" for number in range(300)}


@pytest.mark.parametrize("expected", [0, 1, 299, 300, 301, 10_000])
@pytest.mark.parametrize("prefix", [b"a", b"b", b"c", b"b1", b"", b"zz"])
@pytest.mark.parametrize("holding", [(b"x3",), (b"x", b"5"), (b"nothing",)])
def test_any_expectation_gives_the_same_rows(
    tmp_path: Path, expected: int, prefix: bytes, holding: tuple[bytes, ...]
) -> None:
    database = Rdict(str(tmp_path / "rocks"), Options(raw_mode=True))
    for key, value in ROWS.items():
        database.put(key, value)
    wanted = [
        (key, value)
        for key, value in sorted(ROWS.items())
        if key.startswith(prefix) and all(needle in value for needle in holding)
    ]
    assert list(scan(database, prefix, None, holding, expected)) == wanted
    database.close()
