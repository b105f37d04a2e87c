"""Results, errors and warnings of commands."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ._fabricast import Table, main_list

if TYPE_CHECKING:
    import pandas

PACKAGE = os.path.dirname(__file__)


class FabricastWarning(UserWarning):
    """Warning that the command prints on standard error, for example that a link of the fabric has failed."""


class FabricastError(Exception):
    """Failure that ends the command with an exit code other than 0.

    ``str(error)`` is the message of the command. Example::

        try:
            fabricast.study("study.toml")
        except fabricast.FabricastError as error:
            print(f"{error.file}:{error.line}:{error.column}: {error.message}")
    """

    message: str
    """Message, without the excerpt of the file."""
    help: str | None
    """Suggested fix."""
    file: str | None
    """File with the error."""
    line: int | None
    """Line of the error, from 1."""
    column: int | None
    """Column of the error, from 1."""
    exit_code: int
    """Exit code of the command: 1 failed, 2 bad input or usage, 3 no GPU."""
    result: Result | None
    """Result before the failure: the fault of a schedule, or a comparison outside ``max_error``."""

    def __init__(
        self,
        message: str,
        help: str | None = None,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        exit_code: int = 2,
        document: str | None = None,
    ) -> None:
        super().__init__(message, help, file, line, column, exit_code, document)
        self.message, self.help, self.file, self.line, self.column = message, help, file, line, column
        self.exit_code = exit_code
        self.result = Result(document) if document is not None else None

    def __str__(self) -> str:
        return self.message if self.help is None else f"{self.message}\n  help: {self.help}"


def warn(message: str) -> None:
    """Issues a warning of a command at the line that called this package."""
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE + os.sep):
        frame = frame.f_back
        level += 1
    warnings.warn(message, FabricastWarning, stacklevel=level)


class Result:
    """JSON document of a command: a table of its rows, with the other keys as attributes.

    The columns are the keys of the rows, in the order of the document; the attributes are the keys of the document.
    ``fabricast schema NAME`` describes both, and so does the metadata of the Arrow fields. The object has the Arrow C stream
    interface, so ``pyarrow.table(result)``, ``polars.DataFrame(result)`` and DuckDB take it without a copy. Example::

        >>> result = fabricast.simulate("hgx-h200", collective="all_reduce", bytes="1MiB")
        >>> result.time_us > result.bound_us
        True
        >>> result.columns[:3]
        ['algorithm', 'protocol', 'channels']
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._document: dict[str, Any] = json.loads(text)
        self._list = main_list(self._document.get("format"), list(self._document))

    @property
    def json(self) -> str:
        """Text of the document, byte for byte that of ``--format json``."""
        return self._text

    @property
    def document(self) -> dict[str, Any]:
        """Document as Python objects: ``json.loads(result.json)``."""
        return self._document

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows as dictionaries. A document without a list is its own only row, without its format."""
        if self._list is None:
            return [{key: value for key, value in self._document.items() if key != "format"}]
        rows: list[dict[str, Any]] = self._document[self._list]
        return rows

    @cached_property
    def _table(self) -> Table:
        return Table(self._text, self._list)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return self._table.column_names

    def table(self, name: str) -> Table:
        """Arrow table of another list of the document, for example ``plan.table("ranges")``.

        Raises:
            ValueError: The document has no such list.
        """
        return Table(self._text, name)

    def to_parquet(self, path: str | os.PathLike[str], table: str | None = None, *, force: bool = False) -> None:
        """Writes the rows to a Parquet file. Types are those of the Arrow table; values of several types are text, their JSON.

        Args:
            path: File to write.
            table: Another list of the document, for example ``"ranking"``.
            force: Overwrite an existing file.

        Raises:
            ImportError: pyarrow is not installed.
            ValueError: The document has no such list.
            FileExistsError: The file exists.
        """
        import pyarrow
        import pyarrow.parquet

        rows = pyarrow.table(self if table is None else self.table(table))
        buffer = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(rows, buffer)
        with open(path, "wb" if force else "xb") as file:
            file.write(buffer.getvalue())

    def to_pandas(self) -> pandas.DataFrame:
        """Rows as a pandas DataFrame. Nested objects are dictionaries. Needs pandas and pyarrow.

        Raises:
            ImportError: pandas or pyarrow is not installed.
        """
        import pyarrow

        frame: pandas.DataFrame = pyarrow.table(self).to_pandas()
        return frame

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    def __getattr__(self, name: str) -> Any:
        document = self.__dict__.get("_document", {})
        if name in document:
            return document[name]
        raise AttributeError(f"the result has no {name}: expected one of {', '.join(document)}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._document})

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Result) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind = self._document.get("format", "fabric")
        attributes = ", ".join(key for key in self._document if key not in ("format", self._list))
        return f"<{kind}: {len(self)} rows of {', '.join(self.columns)}; attributes {attributes}>"
