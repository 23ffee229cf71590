"""Reads expected_failures.txt, whose first lines say what it looks like."""

import dataclasses
import fnmatch
import re


@dataclasses.dataclass
class Group:
    reason: str
    message: str = ""  # a regular expression that the failure must match


class Expected:
    def __init__(self, text):
        self.groups = {}  # by test or pattern; a test may be in several, with other messages
        self.needed = set()
        group = None
        for line in text.splitlines():
            if line.startswith("= "):
                group = Group(line[2:].strip())
            elif line.startswith("~ "):
                group.message = line[2:].strip()
            elif line.strip() and not line.startswith("#"):
                self.groups.setdefault(line.strip(), []).append(group)
        self.patterns = [entry for entry in self.groups if "*" in entry or "?" in entry]

    def entries(self, test):
        """Those that name the test, the exact one first."""
        exact = [test] if test in self.groups else []
        return exact + [p for p in self.patterns if fnmatch.fnmatchcase(test, p)]

    def reason(self, test, message):
        """Why the test may fail with this message; None: it may not."""
        for entry in self.entries(test):
            for group in self.groups[entry]:
                if re.search(group.message, message):
                    self.needed.add(entry)
                    return group.reason
        return None

    def not_needed(self, tests):
        """Entries for tests that were run, none of which failed."""
        asked = {entry for test in tests for entry in self.entries(test)}
        return sorted(asked - self.needed - {"*"})
