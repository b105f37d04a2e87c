"""Reduces a trace of PyTorch's profiler to what `simulate --job` reads: ``python reduce_trace.py IN OUT [STEP…]``.

Keeps the metadata of the job, the given profiler steps (all without any), and of these GPU operations with their launches, stream
waits, synchronizations and `record_param_comms`. Names of kernels but NCCL's are cut to 16 characters. IN and OUT may end in `.gz`;
the same input gives the same bytes.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

METADATA = ("schemaVersion", "distributedInfo", "displayTimeUnit", "baseTimeNanoseconds")
ARGUMENTS = (
    "External id", "correlation", "stream", "device", "Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size",
    "Process Group Name", "Process Group ID", "Process Group Ranks", "Global rank start", "Global rank stride", "Src Rank", "Dst Rank",
    "Seq",
)
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver")
BLOCKING = ("StreamWaitEvent", "StreamSynchronize", "EventSynchronize", "DeviceSynchronize")


def reduced(event: dict) -> dict:
    """Event with the keys and arguments that are read."""
    name = event["name"] if "nccl" in event["name"] or event["cat"] not in GPU else event["name"][:16]
    kept = {key: event[key] for key in ("ph", "cat") if key in event} | {"name": name}
    kept |= {key: event[key] for key in ("tid", "ts", "dur")}
    arguments = {key: value for key, value in event.get("args", {}).items() if key in ARGUMENTS}
    return kept | {"args": arguments} if arguments else kept


def main() -> None:
    source, target, *numbers = sys.argv[1:]
    opened = gzip.open if source.endswith(".gz") else open
    with opened(source, "rt") as file:
        trace = json.load(file)
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    steps = [event for event in events if event["name"].startswith("ProfilerStep#") and event["cat"] == "user_annotation"]
    if numbers:
        steps = [event for event in steps if event["name"].removeprefix("ProfilerStep#") in numbers]

    def in_steps(time: float) -> bool:
        return any(step["ts"] <= time < step["ts"] + step["dur"] for step in steps)

    launches = {event["args"]["correlation"]: event for event in events if event.get("cat") in RUNTIME and "correlation" in event.get("args", {})}
    kept = list(steps)
    for event in events:
        if event.get("cat") in GPU:
            launch = launches.get(event.get("args", {}).get("correlation"))
            if in_steps((launch or event)["ts"]):
                kept += [event] if launch is None else [launch, event]
        elif event["name"] == "record_param_comms" or (event.get("cat") in RUNTIME and event["name"].endswith(BLOCKING)):
            kept += [event] if in_steps(event["ts"]) else []
    distinct = {id(event): event for event in kept}.values()
    result = {key: trace[key] for key in METADATA if key in trace}
    result["traceEvents"] = [reduced(event) for event in sorted(distinct, key=lambda event: (event["ts"], event["dur"]))]
    text = json.dumps(result, separators=(",", ":")).encode()
    Path(target).write_bytes(gzip.compress(text, 9, mtime=0) if target.endswith(".gz") else text)


if __name__ == "__main__":
    main()
