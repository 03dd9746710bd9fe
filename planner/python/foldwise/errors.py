"""What the package raises about its user's input."""
from __future__ import annotations

from typing import NamedTuple


class Mistake(NamedTuple):
    """One thing that is wrong with the input."""

    file: str
    """As the user wrote it; "arguments" for those of a call, "run" for a dict."""
    line: int
    """From 1; 0 where there are no lines."""
    field: str
    """A JSON pointer such as "/optimizer/name", or the argument; empty: the whole file."""
    message: str
    """What was expected and what was found."""

    def __str__(self) -> str:
        place = self.file + (f':{self.line}' if self.line else '')
        return ': '.join(part for part in (place, self.field, self.message) if part)


class ConfigError(ValueError):
    """Everything that is wrong with the input at once: `mistakes`, and a list of each of their parts."""

    def __init__(self, mistakes: list[tuple[str, int, str, str]]):
        super().__init__(mistakes)
        self.mistakes = [Mistake(*mistake) for mistake in mistakes]

    @property
    def file(self) -> list[str]:
        return [mistake.file for mistake in self.mistakes]

    @property
    def line(self) -> list[int]:
        return [mistake.line for mistake in self.mistakes]

    @property
    def field(self) -> list[str]:
        return [mistake.field for mistake in self.mistakes]

    def __str__(self) -> str:
        return '\n'.join(map(str, self.mistakes))
