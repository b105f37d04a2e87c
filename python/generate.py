"""Writes package/fabricast/commands.py from the definition of the command line.

Run ``python generate.py`` in an environment with the wheel after a flag has changed. A test compares the file.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "package" / "fabricast" / "commands.py"
WIDTH = 110


@dataclass(frozen=True)
class Keyword:
    """Type, with its default, and description of a keyword, in place of those of the flag."""

    annotation: str
    description: str


@dataclass(frozen=True)
class Function:
    """Python function of a command: its name, the command, and the documentation that the flags do not provide."""

    name: str
    command: list[str]
    summary: str
    returns: str
    raises: str
    example: str
    runner: str = "result"
    """Function that runs the command."""
    returned: str = "Result"
    """Type that the runner returns."""
    fixed: dict[str, str] = field(default_factory=dict)
    """Values of flags that are not keywords."""
    omitted: frozenset[str] = frozenset()
    """Flags without an effect on the result, which are not keywords."""
    has_progress: bool = True
    """True if the command reports progress."""
    keywords: dict[str, Keyword] = field(default_factory=dict)
    """Keywords that accept less, or do less, than their flags do."""

    def check(self, flags: list[dict[str, Any]]) -> None:
        """Ends the program if a flag that is named here does not exist."""
        unknown = {*self.fixed, *self.omitted, *self.keywords} - {flag["name"] for flag in flags}
        if unknown:
            raise SystemExit(f"{self.name}: {' '.join(self.command)} has no flags {', '.join(sorted(unknown))}")

    def annotation(self, flag: dict[str, Any]) -> str:
        """Returns the type of a keyword, with its default."""
        keyword = self.keywords.get(flag["name"])
        return keyword.annotation if keyword else annotation(flag)

    def description(self, flag: dict[str, Any]) -> str:
        """Returns the help of a keyword as one line."""
        keyword = self.keywords.get(flag["name"])
        return keyword.description if keyword else description(flag)


PROGRESS = (
    "progress: True shows a bar of tqdm after a second, if that is installed. A function receives a "
    ":class:`fabricast.Progress` about ten times per second, on this thread, and at the end; its exception stops the "
    "command. The result does not depend on it."
)
SYNTAX = "Wrong flags or input, with file, line and column where they are in a file."

FUNCTIONS = [
    Function(
        "plan",
        ["plan"],
        "Selects the fastest strategy for each collective and size, and shows its distance from the lower bound.",
        "A row for each collective and size: collective, bytes, algorithm, protocol, channels, time_us, low_us and high_us "
        "(80 % prediction interval), busbw_gb_per_s, bound_us, bound_share, bottleneck, runner_up, library_default, fastest. "
        "Attributes: fabric, profile, ranks, ranges and others.",
        SYNTAX,
        'plan = fabricast.plan("hgx-h200", collective="all_reduce", sizes="1KiB..1GiB:32")\n'
        'plan.to_pandas()[["bytes", "algorithm", "protocol", "time_us"]]',
    ),
    Function(
        "simulate",
        ["simulate"],
        "Simulates one call, schedule, list of flows or job on a fabric.",
        "The run as attributes and as the only row: time_us, low_us and high_us (80 % prediction interval), algbw_gb_per_s, "
        "busbw_gb_per_s, bound_us, bottleneck, cost_us (software, latency, bandwidth, waiting), links. With ``flows``, ``job``, "
        "``call`` or ``group``: a row for each flow, event, call or group.",
        SYNTAX + " A schedule that is wrong (exit code 1).",
        'run = fabricast.simulate("hgx-h200", collective="all_reduce", bytes="1MiB", algorithm="ring", protocol="ll128")\n'
        "run.time_us, run.cost_us",
    ),
    Function(
        "compare",
        ["compare"],
        "Compares measured with predicted times and explains the differences.",
        "A row for each measurement: file, collective, ranks, nodes, bytes, algorithm, protocol, launch, measured_us, "
        "predicted_us, low_us, high_us, error (predicted/measured - 1), verdict. Attributes: summary, groups, rejected and "
        "others.",
        SYNTAX + " A median error above ``max_error`` (exit code 1, with the comparison as ``result``).",
        'comparison = fabricast.compare("all_reduce.txt", fabric="hgx-h200", no_nvls=True)\n'
        'comparison.summary["median"]',
    ),
    Function(
        "calibrate",
        ["calibrate"],
        "Fits a cost profile to measurements. ``output`` receives the profile.",
        "A row for each fitted parameter: name, value, low, high, unit. Attributes: profile, fit, held_out, band and others. "
        "Of a study: a row for each measured step, and the figures of the efficiency curve.",
        SYNTAX,
        'fit = fabricast.calibrate("manifest.toml", output="my-profile.toml")\n'
        'fit.fit["median"]',
    ),
    Function(
        "study",
        ["study"],
        "Compares machines for training and inference jobs: time, memory, cost and bottlenecks.",
        "A row for each candidate and job: candidate, job, ranks, step_time_s, tokens_per_s, exposed_comm_share, memory_gb, "
        "fits, cost_per_hour, cost_per_million_tokens, bottleneck and others. Attributes: ranking, candidates, jobs and others. "
        "The file's example as a str with ``template``; None with ``shard``, which only writes the folder of ``output``.",
        SYNTAX,
        'study = fabricast.study("examples/training-70b.toml")\n'
        'study.ranking[0]["candidate"]',
        runner="any_result",
        returned="Any",
    ),
    Function(
        "synthesize",
        ["schedule", "generate"],
        "Packs spanning trees into the links of a fabric and builds the schedule that moves the data over them.",
        "A schedule of the algorithm tree_packing for 2 to 128 ranks. Its ``certificate`` has a cut, whose bandwidth bounds every "
        "schedule, the trees and both times in picoseconds; ``certify(fabric)`` checks it and returns the gap.",
        SYNTAX + " The fabric has no packing: it is disconnected, bandwidths are missing or differ too much, or ranks "
        "share a device.",
        'fabric = fabricast.Fabric("mi300x", fail="gpu0-gpu1")\n'
        'schedule = fabricast.synthesize(fabric, collective="all_gather", bytes="64MiB", trees=4)\n'
        "schedule.certify(fabric).gap",
        runner="schedule",
        returned="Schedule",
        fixed={"algorithm": "tree_packing", "to": "json"},
        omitted=frozenset(
            ["sizes", "op", "matrix", "grid", "periodic", "no-nvls", "library", "registered", "wide", "columns", "ranks-per-gpu"]
        ),
        keywords={
            "collective": Keyword("str", "all_gather, reduce_scatter, all_reduce, broadcast or reduce."),
            "bytes": Keyword(
                "int | str | None = None",
                "Size of the call: the larger of a rank's send and receive buffers, as a number of bytes or with a unit, for "
                "example ``64MiB``. Default: 1 MiB.",
            ),
            "root": Keyword("int | None = None", "Root rank of broadcast and reduce. Default: 0."),
            "protocol": Keyword(
                "str | None = None", "Protocol: ll, ll128, simple or symmetric. Default: by predicted time."
            ),
            "channels": Keyword(
                "int | None = None",
                "Number of channels, 1 to 1024; a channel is one thread block. Default: by predicted time.",
            ),
            "output": Keyword("PathType | None = None", "File to which the schedule is written as JSON."),
        },
    ),
    Function(
        "verify",
        ["schedule", "verify"],
        "Proves that a schedule file computes its collective, without races and deadlocks.",
        "A row: ok (true) and operations, the number of verified operations.",
        SYNTAX + " A schedule that is wrong: exit code 1, and ``error.result.fault`` has operation, rank, chunk, found and "
        "expected.",
        'fabricast.verify("ring.xml").operations',
        has_progress=False,
    ),
]

TYPES = {"integer": "int", "number": "float", "size": "int | str", "path": "PathType", "text": "str"}


def load_extension() -> Any:
    """Loads the extension module alone: the package around it imports the file that is written here."""
    package = importlib.util.find_spec("fabricast")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("fabricast is not installed: pip install ./python")
    for folder in package.submodule_search_locations:
        for file in Path(folder).glob("_fabricast.*"):
            if file.suffix in (".so", ".pyd"):
                spec = importlib.util.spec_from_file_location("_fabricast", file)
                assert spec is not None and spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
    raise SystemExit("the extension module is missing")


def annotation(flag: dict[str, Any]) -> str:
    """Returns the type of a keyword, with its default."""
    if flag["kind"] == "switch":
        return "bool = False"
    one = TYPES[flag["value"]]
    if flag["choices"] and flag["value"] == "text":
        one = "Literal[" + ", ".join(f'"{choice}"' for choice in flag["choices"]) + "]"
    if flag["name"] == "fabric":
        one = "PathType | Fabric"
    if flag["name"] == "trees":
        one = "int | str"
    if flag["name"] in ("schedule", "file") and flag["value"] == "path":
        one = "PathType | Schedule"
    if flag["kind"] == "list":
        one = f"{one} | Sequence[{one}]"
    if flag["kind"] == "optional value":
        one = f"{one} | bool"
    return one if flag["is_required"] else f"{one} | None = None"


def python_code(match: re.Match[str]) -> str:
    """Returns a flag as a keyword in double backticks. Other code stays as it is, in double backticks."""
    code = match[1] or match[0]
    return f"``{code[2:].replace('-', '_')}``" if re.fullmatch("--[a-z][a-z-]*", code) else f"``{code}``"


def description(flag: dict[str, Any]) -> str:
    """Returns the help of a keyword as one line."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in flag["help"].split("\n\n")]
    text = " ".join(one if one.endswith((".", "]")) else f"{one}." for one in paragraphs)
    text = re.sub(r"`([^`]+)`|--[a-z][a-z-]*", python_code, text)
    text = text.replace("….", "…")
    default = flag["default"]
    return f"{text} Default: {default}." if default and "efault" not in text else text


def wrapped(text: str, indent: str, hanging: str = "") -> str:
    """Wraps a paragraph."""
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + hanging, break_long_words=False, break_on_hyphens=False
    )


def function(one: Function, flags: list[dict[str, Any]]) -> str:
    """Returns the code of a function."""
    one.check(flags)
    named_flags = [flag for flag in flags if flag["name"] not in one.omitted]
    flags = [flag for flag in named_flags if flag["name"] not in one.fixed]
    leading = [flag for flag in flags if flag["is_positional"] or flag["name"] == "fabric" and flag["is_required"]]
    keywords = [flag for flag in flags if flag not in leading]
    python = {flag["name"]: flag["name"].replace("-", "_") for flag in flags}
    parameters = [f"    {python[flag['name']]}: {one.annotation(flag)}," for flag in leading]
    parameters += ["    *,"] + [f"    {python[flag['name']]}: {one.annotation(flag)}," for flag in keywords]
    if one.has_progress:
        parameters.append("    progress: ProgressArgument = None,")
    arguments = [
        wrapped(f"{python[flag['name']]}: {one.description(flag)}", " " * 8, " " * 4) for flag in [*leading, *keywords]
    ]
    if one.has_progress:
        arguments.append(wrapped(PROGRESS, " " * 8, " " * 4))
    positionals = ", ".join(
        f"*several({python[flag['name']]})" if flag["kind"] == "list" else f"*given({python[flag['name']]})"
        for flag in flags
        if flag["is_positional"]
    )
    values = {**python, **{name: f'"{value}"' for name, value in one.fixed.items()}}
    named = [
        f'            "{flag["name"].replace("-", "_")}": {values[flag["name"]]},' for flag in named_flags if not flag["is_positional"]
    ]
    body = [
        f"    return {one.runner}(",
        "        [" + ", ".join(f'"{word}"' for word in one.command) + "],",
        f"        [{positionals}],",
        "        {",
        *named,
        "        },",
        *(["        progress,"] if one.has_progress else []),
        "    )",
    ]
    example = textwrap.indent(one.example, " " * 8)
    return "\n".join(
        [
            f"def {one.name}(",
            *parameters,
            f") -> {one.returned}:",
            f'    """{one.summary}',
            "",
            f"    Example::\n\n{example}",
            "",
            "    Args:",
            *arguments,
            "",
            "    Returns:",
            wrapped(one.returns, " " * 8),
            "",
            "    Raises:",
            wrapped(f"FabricastError: {one.raises}", " " * 8, " " * 4),
            '    """',
            *body,
        ]
    )


def generate(extension: Any) -> str:
    """Returns the text of commands.py."""
    heading = '''"""Commands as functions. Written by generate.py from the definition of the command line: do not edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ._call import PathType, any_result, given, result, several
from ._progress import ProgressArgument
from ._result import Result
from ._schedule import Schedule, schedule

if TYPE_CHECKING:
    from ._fabric import Fabric
'''
    functions = [function(one, extension.command_flags(one.command)) for one in FUNCTIONS]
    return heading + "\n\n" + "\n\n\n".join(functions) + "\n"


if __name__ == "__main__":
    FILE.write_text(generate(load_extension()), encoding="utf-8")
    print(f"wrote {FILE}", file=sys.stderr)
