"""What the benchmarks found: rows with a value, a target and a verdict; a table and a JSON file."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Row:
    part: str
    name: str
    value: float
    unit: str = "x"
    target: float | None = None
    """The most the value may be."""
    least: float | None = None
    """The least it may be; a row without either only informs."""
    note: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        if self.target is None and self.least is None:
            return ""
        met = self.value <= self.target if self.least is None else self.value >= self.least
        return "ok" if met else "MISSED"

    @property
    def limit(self) -> str:
        if self.least is not None:
            return "≥ " + format_value(self.least, self.unit)
        return "" if self.target is None else "≤ " + format_value(self.target, self.unit)


def format_value(value: float, unit: str) -> str:
    if unit == "x":
        return f"{value:.3f}"
    if unit == "":
        return f"{value:,.0f}"
    return f"{value:,.0f} {unit}"


class Table:
    """Prints rows as they come, under one heading per part."""

    WIDTHS = (48, 14, 10, 8)

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._part = ""

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if row.part != self._part:
                self._part = row.part
                self._line((row.part, "value", "target", "verdict", ""))
                print("-" * (sum(self.WIDTHS) + len(self.WIDTHS)))
            value = format_value(row.value, row.unit)
            self._line((f"  {row.name}", value, row.limit, row.verdict, row.note))
            self.rows.append(row)
        print()

    def _line(self, cells: tuple[str, ...]) -> None:
        name, *rest = cells
        aligned = [f"{c:>{w}}" for c, w in zip(rest, self.WIDTHS[1:], strict=False)]
        print(f"{name:<{self.WIDTHS[0]}}", *aligned, f" {rest[-1]}".rstrip(), flush=True)

    def missed(self) -> Iterator[Row]:
        return (row for row in self.rows if row.verdict == "MISSED")

    def save(self, path: str, facts: dict[str, Any]) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        rows = [{**asdict(row), "verdict": row.verdict} for row in self.rows]
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**facts, "rows": rows}, file, indent=1)
