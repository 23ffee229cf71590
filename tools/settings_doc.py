"""Writes docs/settings.md from the table in src/base/settings.cpp; --check only compares.

The table is read as text, so that checking needs no build.
"""

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/base/settings.cpp"
TARGET = ROOT / "docs/settings.md"

NAME = r"(?:TORCH_LAZY|LTC)_\w+"

INTRODUCTION = """\
# Settings

<!-- Made by tools/settings_doc.py from src/base/settings.cpp; `make format` makes it anew. -->

Every setting is an environment variable, read when torch-lazy is first used. From Python it can be
read and changed while the program runs, from C++ with `torch_lazy::get_setting` and `set_setting`:

```python
torch_lazy.config.set("max_nodes", 1000)
with torch_lazy.config.override(source_lines=True):
    ...
for row in torch_lazy.config.table():
    print(row.name, row.value, row.meaning)
```

Numbers are whole; switches are 1 or 0. A wrong name or value is an error that says what to write.

The variables and flags of PyTorch's Lazy Tensor Core are honoured: `LTC_...` under their names, and
a flag `torch_lazy_...` as the setting of that name in capitals. Where one of them only repeats a
setting of ours and both are in the environment, ours counts.

| name | default | meaning |
|---|---|---|
"""


def rows(source: str) -> list[tuple[str, str, str]]:
    """Name, default and meaning: three string literals in a row, the last possibly in pieces."""
    literal = r'"((?:[^"\\]|\\.)*)"'
    row = rf'"({NAME})",\s*{literal},\s*((?:{literal}\s*)+)[,)]'
    found = []
    for match in re.finditer(row, source):
        meaning = "".join(re.findall(literal, match[3]))
        found.append((match[1], match[2], meaning))
    return found


def document() -> str:
    source = SOURCE.read_text(encoding="utf-8")
    table = rows(source)
    header = SOURCE.with_suffix(".h").read_text(encoding="utf-8")
    fields = re.findall(rf";\s*// ({NAME}(?:, {NAME})*)$", header, re.MULTILINE)
    declared = {name for names in fields for name in names.split(", ")}
    if {name for name, _, _ in table} != declared:
        raise SystemExit(f"{SOURCE}: its table could not be read; adapt tools/settings_doc.py")
    lines = [
        f"| `{name}` | {f'`{default}`' if default else 'empty'} | {meaning} |\n"
        for name, default, meaning in table
    ]
    return INTRODUCTION + "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the file is not current")
    text = document()
    if not parser.parse_args().check:
        TARGET.write_text(text, encoding="utf-8")
    elif not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        raise SystemExit(f"{TARGET.relative_to(ROOT)} is not current: run make format")


if __name__ == "__main__":
    main()
