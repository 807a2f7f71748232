"""What is closed at the end of a with statement."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Something that is closed when a with statement ends, whatever happened in it."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
