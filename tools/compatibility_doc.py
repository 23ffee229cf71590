"""Checks docs/compatibility.md: every behaviour has a row, every row a test, every test exists.

The tests are read as text, so that checking needs no build.
"""

import argparse
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/compatibility.md"
FOLDERS = {".py": ROOT / "tests/python", ".cpp": ROOT / "tests/cpp"}
LAST = 156

ROW = re.compile(r"^\| B(\d+) \| (.*) \| (.*) \| (.*) \|$")
REFERENCE = re.compile(r"`(\w+)(\.py|\.cpp)::([\w.*]+)`")
CPP_TEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
PYTHON_TEST = re.compile(r"^\s*(?:async )?def (test\w*)\(", re.MULTILINE)


@functools.cache
def names_in(file: Path) -> frozenset[str]:
    """The tests of a file: functions of a Python file; Suite.Name, and Suite.*, of a C++ file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        return frozenset(PYTHON_TEST.findall(text))
    tests = CPP_TEST.findall(text)
    return frozenset(f"{suite}.{name}" for suite, test in tests for name in (test, "*"))


def mistakes_in_references(line: str) -> Iterator[str]:
    for stem, suffix, name in REFERENCE.findall(line):
        file = FOLDERS[suffix] / f"{stem}{suffix}"
        if not file.exists():
            yield f"there is no {file.relative_to(ROOT)}"
        elif name not in names_in(file):
            yield f"{file.relative_to(ROOT)} has no test {name}"


def mistakes(document: str) -> Iterator[str]:
    """What is wrong with the document, one line each."""
    seen: list[int] = []
    for number, line in enumerate(document.splitlines(), start=1):
        for mistake in mistakes_in_references(line):
            yield f"line {number}: {mistake}"
        row = ROW.match(line)
        if row is None:
            if line.startswith("| B"):
                yield f"line {number}: a row has four columns: number, behaviour, tests, remark"
            continue
        seen.append(int(row[1]))
        if not REFERENCE.search(row[3]) and not row[4].startswith("None:"):
            yield f"line {number}: B{row[1]} has no test, and its remark does not begin with None:"
    for behaviour in range(1, LAST + 1):
        if (count := seen.count(behaviour)) != 1:
            yield f"B{behaviour} has {count or 'no'} row{'s' if count > 1 else ''}"
    for behaviour in sorted({b for b in seen if not 1 <= b <= LAST}):
        yield f"B{behaviour} is not one of B1 to B{LAST}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="the default, and all there is")
    parser.parse_args()
    found = list(mistakes(DOCUMENT.read_text(encoding="utf-8")))
    for mistake in found:
        print(f"{DOCUMENT.relative_to(ROOT)}: {mistake}", file=sys.stderr)
    if found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
