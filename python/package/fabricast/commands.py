"""Commands as functions. Written by generate.py from the definition of the command line: do not edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ._call import PathType, any_result, given, result, several
from ._progress import ProgressArgument
from ._result import Result
from ._schedule import Schedule, schedule

if TYPE_CHECKING:
    from ._fabric import Fabric


def plan(
    fabric: PathType | Fabric,
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    network: str | None = None,
    gpu_model: str | None = None,
    mig: str | Sequence[str] | None = None,
    no_p2p: bool = False,
    ecmp: str | None = None,
    no_gdr: bool = False,
    ranks_per_gpu: int | None = None,
    buffers: str | None = None,
    collective: str | None = None,
    bytes: int | str | None = None,
    sizes: str | None = None,
    dtype: str | None = None,
    op: str | None = None,
    root: int | None = None,
    in_place: bool = False,
    matrix: PathType | None = None,
    grid: str | None = None,
    periodic: bool = False,
    algorithm: str | Sequence[str] | None = None,
    protocol: str | Sequence[str] | None = None,
    channels: int | Sequence[int] | None = None,
    chunk: int | str | None = None,
    trees: int | str | None = None,
    no_nvls: bool = False,
    library: str | None = None,
    registered: Literal["plain", "symmetric"] | None = None,
    profile: str | None = None,
    launch: Literal["graph", "stream"] | None = None,
    processes: Literal["per_gpu", "single"] | None = None,
    fail: str | Sequence[str] | None = None,
    slow: str | Sequence[str] | None = None,
    job: PathType | None = None,
    measured: PathType | Sequence[PathType] | None = None,
    all: bool = False,
    chart: PathType | None = None,
    panel: bool = False,
    bandwidth_axis: Literal["linear", "log"] | None = None,
    output: PathType | None = None,
    wide: bool = False,
    columns: str | Sequence[str] | None = None,
    force: bool = False,
    threads: int | None = None,
    progress: ProgressArgument = None,
) -> Result:
    """Selects the fastest strategy for each collective and size, and shows its distance from the lower bound.

    Example::

        plan = fabricast.plan("hgx-h200", collective="all_reduce", sizes="1KiB..1GiB:32")
        plan.to_pandas()[["bytes", "algorithm", "protocol", "time_us"]]

    Args:
        fabric: Fabric: preset (``fabric list``), spec (TOML), NCCL topology (XML), ``nvidia-smi topo -m``.
        nodes: Number of hosts; a preset or file of one host is replicated.
        gpus: GPUs in use per host; default: all.
        network: Network between hosts: a kind and settings, e.g. ``rail,nics_per_node=8,nic=400Gb/s``. Kinds,
            of which the first is the default: ``rail``: NIC i of every host connects to the switches of rail
            i. ``fat_tree``: leaf, spine and core switches; all NICs of a host connect to the same leaf.
            ``dragonfly``: groups of routers, all-to-all within a group and between groups. ``torus``: each
            host is joined to two neighbours per dimension. ``mnnvl``: one NVLink domain across the hosts
            (multi-node NVLink), without keys. ``tcp-loopback``: TCP sockets between the processes of one
            machine. Keys of rail, fat_tree, dragonfly, torus: ``nics_per_node``: number of NICs per host, 1
            to 256. ``oversubscription``: bandwidth below a leaf divided by that above it, 0.01 to 1000;
            default: 1. ``mtu``: MTU of Ethernet in bytes, 576 to 65535; default: 1500. ``adaptive_routing``:
            NCCL_IB_ADAPTIVE_ROUTING, true or false; default: true with InfiniBand, false with Ethernet.
            ``queue_pairs``: queue pairs of a connection (NCCL_IB_QPS_PER_CONNECTION), 1 to 128; default: 1.
            ``nodes_per_domain``: hosts in use of each NVLink domain of a rack, 1 to 65536; default: all.
            ``sharp``: reduction and multicast in the InfiniBand switches, true or false; default: false. Keys
            of rail, fat_tree, dragonfly, torus, tcp-loopback: ``nic``: line rate of a NIC in each direction,
            as in 400Gb/s. ``nic_latency``: latency of the NICs at both ends of a path and their cables;
            default: 1.3us, of tcp-loopback 40us. ``switch_latency``: latency of one switch and the cable
            behind it; default: 300ns, of tcp-loopback none. ``link``: technology of the cables, infiniband or
            ethernet; default: infiniband, of tcp-loopback ethernet. Keys of rail, fat_tree: ``tiers``: number
            of switch levels, 1 to 8; default: 2 for rail, as many as needed for fat_tree. ``radix``: number
            of ports of a switch, 2 to 4096; default: as many as needed for rail, 64 for fat_tree. ``ecmp``:
            number of equal-cost paths that flows are spread over, 1 to 256. Keys of dragonfly: ``groups``:
            number of groups, 1 to 65536; default: the square root of the number of hosts. Keys of torus:
            ``dimensions``: side lengths in hosts, as in 4x4x2; default: the most cubic shape.
        gpu_model: GPU model if the fabric file has none: a name of ``list gpus``. The name that nvidia-smi or
            rocm-smi prints is accepted too.
        mig: Split a GPU into MIG instances, for example ``gpu0=3g.71gb,4g.71gb``; may be repeated. Each
            instance is a rank in place of the GPU. To split several GPUs: ``gpu[0-7]=7g.141gb``.
        no_p2p: Disable GPU peer-to-peer access: GPUs of a host communicate through host memory.
        ecmp: Load balancing over equal-cost network paths: ``averaged``, ``hashed`` or ``hashed=SEED``.
            ``averaged`` spreads each flow evenly over all equal-cost paths. ``hashed`` selects one path by a
            hash of the flow's endpoints, so flows may collide. Default: averaged.
        no_gdr: Disable GPUDirect RDMA: network traffic passes through host memory.
        ranks_per_gpu: Ranks per GPU or MIG instance under MPS, 1 to 48; default: 1. These ranks share the
            memory, links, SMs and copy engines of the GPU.
        buffers: Location of send and receive buffers; default: device. ``device``: GPU memory. ``pinned``,
            ``pageable``: host memory. ``managed``: unified memory, whose pages start on the CPU and move to
            the GPU when first read, at the rate of a prefetch. ``grace``: CPU memory over NVLink-C2C.
            ``peer=gpu0``: memory of another GPU.
        collective: Collective, for example all_reduce; on ``plan``, ``all`` for all with arbitrary sizes.
            Values, with the meaning of nccl-tests: all_reduce, all_gather, reduce_scatter, broadcast, reduce,
            all_to_all, gather, scatter, send_recv, all_to_allv (with ``matrix``), barrier. ``halo`` (with
            ``grid``) is an all_to_allv between neighbours. ``dispatch`` and ``combine`` (with ``tokens``, on
            ``simulate``) exchange tokens with their experts.
        bytes: Message size, for example 4096, 64K, 64KiB or 64KB (64,000 bytes). The definition is that of
            nccl-tests: the larger of a rank's send and receive buffers. For all_to_allv it is the total that
            the matrix is scaled to; for halo, the size of a face.
        sizes: Several message sizes: ranges, both ends included, or a list as in 64KiB,1MiB [default:
            1KiB..1GiB by factors of 2]
        dtype: Element type, for example f32 or bf16. Sizes are rounded down to whole elements, as in
            nccl-tests. Without a type, sizes are used as given.
        op: Reduction: sum, prod, max or min. All are bound by memory bandwidth and have the same predicted
            time. Default: sum.
        root: Root rank of broadcast, reduce, gather and scatter. Default: 0.
        in_place: Use the same buffer for input and output.
        matrix: Matrix of all_to_allv: CSV of sizes, a line per sender, a column per receiver.
        grid: Rank grid of halo: one to three side lengths, fastest-varying first, for example 4x2x1.
        periodic: Periodic grid boundaries: the ends of each dimension are neighbours.
        algorithm: Algorithms, comma-separated, for example ring or tree; docs/algorithms.md lists them.
        protocol: Protocols, comma-separated: ll, ll128, simple, symmetric, copy_engine.
        channels: Numbers of channels, comma-separated, 1 to 1024; a channel is one thread block.
        chunk: Maximum chunk size of a step, for example 512KiB; default: the protocol's.
        trees: Trees of tree_packing: at most K per root, 1 to 256; optimal; or widened-2, widened-4,
            widened-16, which are shallower and use a part of the bandwidth; default: the fastest.
        no_nvls: Disable NVLink SHARP (reduction and multicast in NVSwitches).
        library: Library to plan for and compare with, for example ``nccl-2.28.9``; ``none`` for no library.
            Restricts the candidates to those that the library can run, and shows the library's default choice
            (``simulate`` runs that choice if no strategy is given). Examples: ``nccl``, ``nccl-2.30``,
            ``open_mpi-5.0``. Default: the profile's library is shown and does not restrict the candidates.
        registered: Registration of the library's buffers. Default: plain.
        profile: Cost profile: ``ideal``, a shipped name, or a file; default: best match for the GPUs.
        launch: Launch mode of calls. Default: graph.
        processes: Process layout: one process or thread per GPU, or one process per host. Default: per_gpu.
        fail: Take a link (``a->b``, ``a-b``) or a device out of service; may be repeated.
        slow: Reduce a link to a fraction of its bandwidth, e.g. ``gpu0-nvswitch0=0.5``; may be repeated.
        job: Job whose calls are planned, weighted by their counts: TOML, or a recorded job. TOML: a job as in
            studies. CSV: calls and computations of ranks (columns collective, bytes, time_us, ranks, count,
            name, after, start_us). PyTorch's profiler: its JSON of one rank, or a folder with those of
            several ranks. NCCL log: NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,COLL. NCCL's Inspector and
            example profiler: a file, or a folder with those of all processes. Chakra: any one of NAME.0.et,
            NAME.1.et, … JSON may be in gzip.
        measured: Manifest of measured times, which replace predicted ones; may be repeated. The format is
            that of ``compare``. Measurements are used if they have the plan's numbers of ranks and hosts and
            its launch mode.
        all: List every candidate of each size with its time, fastest first.
        chart: Draw time and bus bandwidth against size, a line per strategy (.svg, .png or .pdf).
        panel: Draw a row per collective in the chart: time and bus bandwidth.
        bandwidth_axis: Scale of the chart's axis of bus bandwidths [default: log if a linear axis hides small
            sizes]
        output: Write the result to a file instead of standard output. Without it, ``report`` writes
            report.html. ``study``, ``man``, and ``table`` with a format of several files write to a folder,
            which is created if missing.
        wide: Show all columns of tables; default: as many as fit the width of the terminal (or COLUMNS).
        columns: Columns of tables to show in text, by name or JSON key, for example ``size,busbw``.
        force: Overwrite existing files, even if they were changed or not written by fabricast.
        threads: Number of threads, which does not affect results; default: all cores.
        progress: True shows a bar of tqdm after a second, if that is installed. A function receives a
            :class:`fabricast.Progress` about ten times per second, on this thread, and at the end; its
            exception stops the command. The result does not depend on it.

    Returns:
        A row for each collective and size: collective, bytes, algorithm, protocol, channels, time_us, low_us
        and high_us (80 % prediction interval), busbw_gb_per_s, bound_us, bound_share, bottleneck, runner_up,
        library_default, fastest. Attributes: fabric, profile, ranks, ranges and others.

    Raises:
        FabricastError: Wrong flags or input, with file, line and column where they are in a file.
    """
    return result(
        ["plan"],
        [],
        {
            "fabric": fabric,
            "nodes": nodes,
            "gpus": gpus,
            "network": network,
            "gpu_model": gpu_model,
            "mig": mig,
            "no_p2p": no_p2p,
            "ecmp": ecmp,
            "no_gdr": no_gdr,
            "ranks_per_gpu": ranks_per_gpu,
            "buffers": buffers,
            "collective": collective,
            "bytes": bytes,
            "sizes": sizes,
            "dtype": dtype,
            "op": op,
            "root": root,
            "in_place": in_place,
            "matrix": matrix,
            "grid": grid,
            "periodic": periodic,
            "algorithm": algorithm,
            "protocol": protocol,
            "channels": channels,
            "chunk": chunk,
            "trees": trees,
            "no_nvls": no_nvls,
            "library": library,
            "registered": registered,
            "profile": profile,
            "launch": launch,
            "processes": processes,
            "fail": fail,
            "slow": slow,
            "job": job,
            "measured": measured,
            "all": all,
            "chart": chart,
            "panel": panel,
            "bandwidth_axis": bandwidth_axis,
            "output": output,
            "wide": wide,
            "columns": columns,
            "force": force,
            "threads": threads,
        },
        progress,
    )


def simulate(
    fabric: PathType | Fabric,
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    network: str | None = None,
    gpu_model: str | None = None,
    mig: str | Sequence[str] | None = None,
    no_p2p: bool = False,
    ecmp: str | None = None,
    no_gdr: bool = False,
    ranks_per_gpu: int | None = None,
    buffers: str | None = None,
    collective: str | None = None,
    bytes: int | str | None = None,
    sizes: str | None = None,
    dtype: str | None = None,
    op: str | None = None,
    root: int | None = None,
    in_place: bool = False,
    matrix: PathType | None = None,
    grid: str | None = None,
    periodic: bool = False,
    algorithm: str | Sequence[str] | None = None,
    protocol: str | Sequence[str] | None = None,
    channels: int | Sequence[int] | None = None,
    chunk: int | str | None = None,
    trees: int | str | None = None,
    no_nvls: bool = False,
    library: str | None = None,
    registered: Literal["plain", "symmetric"] | None = None,
    tokens: int | None = None,
    hidden: int | None = None,
    experts: int | None = None,
    top_k: int | None = None,
    token_type: str | None = None,
    routing: str | None = None,
    skew: float | None = None,
    kernel: str | None = None,
    sms: int | None = None,
    write_matrix: PathType | None = None,
    profile: str | None = None,
    launch: Literal["graph", "stream"] | None = None,
    processes: Literal["per_gpu", "single"] | None = None,
    fail: str | Sequence[str] | None = None,
    slow: str | Sequence[str] | None = None,
    schedule: PathType | Schedule | None = None,
    no_verify: bool = False,
    flows: PathType | None = None,
    job: PathType | None = None,
    background: PathType | None = None,
    straggler: str | Sequence[str] | None = None,
    group: str | Sequence[str] | None = None,
    call: str | Sequence[str] | None = None,
    nccl_group: bool = False,
    no_fold: bool = False,
    trace: PathType | None = None,
    critical_path: bool = False,
    utilization_over_time: int | bool | None = None,
    breakdown: PathType | None = None,
    output: PathType | None = None,
    wide: bool = False,
    columns: str | Sequence[str] | None = None,
    force: bool = False,
    threads: int | None = None,
    progress: ProgressArgument = None,
) -> Result:
    """Simulates one call, schedule, list of flows or job on a fabric.

    Example::

        run = fabricast.simulate("hgx-h200", collective="all_reduce", bytes="1MiB", algorithm="ring", protocol="ll128")
        run.time_us, run.cost_us

    Args:
        fabric: Fabric: preset (``fabric list``), spec (TOML), NCCL topology (XML), ``nvidia-smi topo -m``.
        nodes: Number of hosts; a preset or file of one host is replicated.
        gpus: GPUs in use per host; default: all.
        network: Network between hosts: a kind and settings, e.g. ``rail,nics_per_node=8,nic=400Gb/s``. Kinds,
            of which the first is the default: ``rail``: NIC i of every host connects to the switches of rail
            i. ``fat_tree``: leaf, spine and core switches; all NICs of a host connect to the same leaf.
            ``dragonfly``: groups of routers, all-to-all within a group and between groups. ``torus``: each
            host is joined to two neighbours per dimension. ``mnnvl``: one NVLink domain across the hosts
            (multi-node NVLink), without keys. ``tcp-loopback``: TCP sockets between the processes of one
            machine. Keys of rail, fat_tree, dragonfly, torus: ``nics_per_node``: number of NICs per host, 1
            to 256. ``oversubscription``: bandwidth below a leaf divided by that above it, 0.01 to 1000;
            default: 1. ``mtu``: MTU of Ethernet in bytes, 576 to 65535; default: 1500. ``adaptive_routing``:
            NCCL_IB_ADAPTIVE_ROUTING, true or false; default: true with InfiniBand, false with Ethernet.
            ``queue_pairs``: queue pairs of a connection (NCCL_IB_QPS_PER_CONNECTION), 1 to 128; default: 1.
            ``nodes_per_domain``: hosts in use of each NVLink domain of a rack, 1 to 65536; default: all.
            ``sharp``: reduction and multicast in the InfiniBand switches, true or false; default: false. Keys
            of rail, fat_tree, dragonfly, torus, tcp-loopback: ``nic``: line rate of a NIC in each direction,
            as in 400Gb/s. ``nic_latency``: latency of the NICs at both ends of a path and their cables;
            default: 1.3us, of tcp-loopback 40us. ``switch_latency``: latency of one switch and the cable
            behind it; default: 300ns, of tcp-loopback none. ``link``: technology of the cables, infiniband or
            ethernet; default: infiniband, of tcp-loopback ethernet. Keys of rail, fat_tree: ``tiers``: number
            of switch levels, 1 to 8; default: 2 for rail, as many as needed for fat_tree. ``radix``: number
            of ports of a switch, 2 to 4096; default: as many as needed for rail, 64 for fat_tree. ``ecmp``:
            number of equal-cost paths that flows are spread over, 1 to 256. Keys of dragonfly: ``groups``:
            number of groups, 1 to 65536; default: the square root of the number of hosts. Keys of torus:
            ``dimensions``: side lengths in hosts, as in 4x4x2; default: the most cubic shape.
        gpu_model: GPU model if the fabric file has none: a name of ``list gpus``. The name that nvidia-smi or
            rocm-smi prints is accepted too.
        mig: Split a GPU into MIG instances, for example ``gpu0=3g.71gb,4g.71gb``; may be repeated. Each
            instance is a rank in place of the GPU. To split several GPUs: ``gpu[0-7]=7g.141gb``.
        no_p2p: Disable GPU peer-to-peer access: GPUs of a host communicate through host memory.
        ecmp: Load balancing over equal-cost network paths: ``averaged``, ``hashed`` or ``hashed=SEED``.
            ``averaged`` spreads each flow evenly over all equal-cost paths. ``hashed`` selects one path by a
            hash of the flow's endpoints, so flows may collide. Default: averaged.
        no_gdr: Disable GPUDirect RDMA: network traffic passes through host memory.
        ranks_per_gpu: Ranks per GPU or MIG instance under MPS, 1 to 48; default: 1. These ranks share the
            memory, links, SMs and copy engines of the GPU.
        buffers: Location of send and receive buffers; default: device. ``device``: GPU memory. ``pinned``,
            ``pageable``: host memory. ``managed``: unified memory, whose pages start on the CPU and move to
            the GPU when first read, at the rate of a prefetch. ``grace``: CPU memory over NVLink-C2C.
            ``peer=gpu0``: memory of another GPU.
        collective: Collective, for example all_reduce; on ``plan``, ``all`` for all with arbitrary sizes.
            Values, with the meaning of nccl-tests: all_reduce, all_gather, reduce_scatter, broadcast, reduce,
            all_to_all, gather, scatter, send_recv, all_to_allv (with ``matrix``), barrier. ``halo`` (with
            ``grid``) is an all_to_allv between neighbours. ``dispatch`` and ``combine`` (with ``tokens``, on
            ``simulate``) exchange tokens with their experts.
        bytes: Message size, for example 4096, 64K, 64KiB or 64KB (64,000 bytes). The definition is that of
            nccl-tests: the larger of a rank's send and receive buffers. For all_to_allv it is the total that
            the matrix is scaled to; for halo, the size of a face.
        sizes: Several message sizes: ranges, both ends included, or a list as in 64KiB,1MiB [default:
            1KiB..1GiB by factors of 2]
        dtype: Element type, for example f32 or bf16. Sizes are rounded down to whole elements, as in
            nccl-tests. Without a type, sizes are used as given.
        op: Reduction: sum, prod, max or min. All are bound by memory bandwidth and have the same predicted
            time. Default: sum.
        root: Root rank of broadcast, reduce, gather and scatter. Default: 0.
        in_place: Use the same buffer for input and output.
        matrix: Matrix of all_to_allv: CSV of sizes, a line per sender, a column per receiver.
        grid: Rank grid of halo: one to three side lengths, fastest-varying first, for example 4x2x1.
        periodic: Periodic grid boundaries: the ends of each dimension are neighbours.
        algorithm: Algorithms, comma-separated, for example ring or tree; docs/algorithms.md lists them.
        protocol: Protocols, comma-separated: ll, ll128, simple, symmetric, copy_engine.
        channels: Numbers of channels, comma-separated, 1 to 1024; a channel is one thread block.
        chunk: Maximum chunk size of a step, for example 512KiB; default: the protocol's.
        trees: Trees of tree_packing: at most K per root, 1 to 256; optimal; or widened-2, widened-4,
            widened-16, which are shallower and use a part of the bandwidth; default: the fastest.
        no_nvls: Disable NVLink SHARP (reduction and multicast in NVSwitches).
        library: Library to plan for and compare with, for example ``nccl-2.28.9``; ``none`` for no library.
            Restricts the candidates to those that the library can run, and shows the library's default choice
            (``simulate`` runs that choice if no strategy is given). Examples: ``nccl``, ``nccl-2.30``,
            ``open_mpi-5.0``. Default: the profile's library is shown and does not restrict the candidates.
        registered: Registration of the library's buffers. Default: plain.
        tokens: Number of tokens per rank.
        hidden: Number of elements per token (hidden size of the model) [default: 7168]
        experts: Total number of experts of all ranks [default: 256]
        top_k: Number of experts per token [default: 8]
        token_type: Element type of sent tokens: bf16, fp8 or nvfp4 [default: fp8 for dispatch, bf16 for
            combine]
        routing: Routing of tokens: random, balanced, or groups=8,limit=4 [default: random] ``random``: all
            sets of experts are equally likely. ``groups=G,limit=L``: a token uses experts of at most L of G
            equal groups (node-limited routing). ``balanced``: tokens are spread evenly over the ranks.
        skew: Load of the most loaded rank relative to the mean, 1 or more [default: 1]
        kernel: Kernel: deepep, deepep-ll, deepep-v2, nccl-ep-ll, pplx, trtllm or trtllm-one-sided [default:
            deepep] ``deepep``: DeepEP's normal kernels, a token once per NVLink domain. ``deepep-ll``: its
            low-latency kernels, a copy for each expert. ``nccl-ep-ll``: NCCL EP's, a copy for each rank in a
            dispatch. ``trtllm``: TensorRT-LLM's kernels inside one NVLink domain.
        sms: Number of SMs for DeepEP's normal kernels [default: 20]
        write_matrix: Write the expected bytes between ranks as a matrix of all_to_allv (CSV). A token is
            counted once for each rank with one of its experts. Pass the file to ``matrix`` with all_to_allv
            to plan, verify and simulate schedules.
        profile: Cost profile: ``ideal``, a shipped name, or a file; default: best match for the GPUs.
        launch: Launch mode of calls. Default: graph.
        processes: Process layout: one process or thread per GPU, or one process per host. Default: per_gpu.
        fail: Take a link (``a->b``, ``a-b``) or a device out of service; may be repeated.
        slow: Reduce a link to a fraction of its bandwidth, e.g. ``gpu0-nvswitch0=0.5``; may be repeated.
        schedule: Schedule file to run instead of a strategy: fabricast's JSON, MSCCL XML or MSCCL++ plan.
        no_verify: Skip the proof that schedules compute their collective without races and deadlocks.
        flows: Timed flows to run instead of a collective: CSV with the header ``src,dst,bytes,start_us``.
        job: Job to run instead of a collective: CSV, traces of PyTorch's profiler, NCCL's records, Chakra
            traces. CSV: calls and computations of ranks (columns collective, bytes, time_us, ranks, count,
            name, after, start_us). PyTorch's profiler: its JSON of one rank, or a folder with those of
            several ranks. NCCL log: NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,COLL. NCCL's Inspector and
            example profiler: a file, or a folder with those of all processes. Chakra: any one of NAME.0.et,
            NAME.1.et, … JSON may be in gzip.
        background: Background flows that share the fabric with the run, in the format of ``flows``.
        straggler: Delay the start of a GPU, for example ``gpu5=20us``; may be repeated.
        group: Ranks of a group that runs the call, for example ``0-3,8``; may be repeated. All groups run the
            call concurrently and share the fabric, like the tensor-parallel groups of a job.
        call: Concurrent call, for example ``all_gather:ranks=0-3,bytes=1MiB``; may be repeated. All calls
            start at the same time and share the fabric, like kernels of several streams. A value is a
            collective and settings that override the other flags, for example
            ``all_gather:ranks=0-3,bytes=1MiB,algorithm=ring``. Keys: ranks (default: all; calls may share
            ranks), bytes, algorithm, protocol, channels, chunk, root, matrix, grid.
        nccl_group: Run all calls of ``call`` in one kernel, as NCCL runs a group of calls. NCCL does so with
            calls between ncclGroupStart and ncclGroupEnd. It chooses their algorithms and protocols jointly
            and divides the channels among them. Calls on the same channel run in sequence, others
            concurrently. Only collectives of all ranks can be in a group.
        no_fold: Simulate every operation, even if ranks are proved to be interchangeable.
        trace: Write a Chrome trace for Perfetto: a track per rank and channel, link utilization. Of a job:
            tracks of each rank for computation, waiting and each communication group, with arrows to what
            waits. Operations of large runs are merged to keep the file below 50 MB.
        critical_path: Show the critical path: the dependent operations whose durations add up to the time.
            Needs about 120 bytes of memory per simulated operation, like ``trace`` and
            ``utilization_over_time``.
        utilization_over_time: Show the utilization of the N busiest resources over time [default N: 10]
            Resources are links, memories and switches. The N busiest channels are added if the profile limits
            channels.
        breakdown: Break the times of all ``sizes`` down by cost parameter of the profile (.svg or .png).
        output: Write the result to a file instead of standard output. Without it, ``report`` writes
            report.html. ``study``, ``man``, and ``table`` with a format of several files write to a folder,
            which is created if missing.
        wide: Show all columns of tables; default: as many as fit the width of the terminal (or COLUMNS).
        columns: Columns of tables to show in text, by name or JSON key, for example ``size,busbw``.
        force: Overwrite existing files, even if they were changed or not written by fabricast.
        threads: Number of threads, which does not affect results; default: all cores.
        progress: True shows a bar of tqdm after a second, if that is installed. A function receives a
            :class:`fabricast.Progress` about ten times per second, on this thread, and at the end; its
            exception stops the command. The result does not depend on it.

    Returns:
        The run as attributes and as the only row: time_us, low_us and high_us (80 % prediction interval),
        algbw_gb_per_s, busbw_gb_per_s, bound_us, bottleneck, cost_us (software, latency, bandwidth, waiting),
        links. With ``flows``, ``job``, ``call`` or ``group``: a row for each flow, event, call or group.

    Raises:
        FabricastError: Wrong flags or input, with file, line and column where they are in a file. A schedule
            that is wrong (exit code 1).
    """
    return result(
        ["simulate"],
        [],
        {
            "fabric": fabric,
            "nodes": nodes,
            "gpus": gpus,
            "network": network,
            "gpu_model": gpu_model,
            "mig": mig,
            "no_p2p": no_p2p,
            "ecmp": ecmp,
            "no_gdr": no_gdr,
            "ranks_per_gpu": ranks_per_gpu,
            "buffers": buffers,
            "collective": collective,
            "bytes": bytes,
            "sizes": sizes,
            "dtype": dtype,
            "op": op,
            "root": root,
            "in_place": in_place,
            "matrix": matrix,
            "grid": grid,
            "periodic": periodic,
            "algorithm": algorithm,
            "protocol": protocol,
            "channels": channels,
            "chunk": chunk,
            "trees": trees,
            "no_nvls": no_nvls,
            "library": library,
            "registered": registered,
            "tokens": tokens,
            "hidden": hidden,
            "experts": experts,
            "top_k": top_k,
            "token_type": token_type,
            "routing": routing,
            "skew": skew,
            "kernel": kernel,
            "sms": sms,
            "write_matrix": write_matrix,
            "profile": profile,
            "launch": launch,
            "processes": processes,
            "fail": fail,
            "slow": slow,
            "schedule": schedule,
            "no_verify": no_verify,
            "flows": flows,
            "job": job,
            "background": background,
            "straggler": straggler,
            "group": group,
            "call": call,
            "nccl_group": nccl_group,
            "no_fold": no_fold,
            "trace": trace,
            "critical_path": critical_path,
            "utilization_over_time": utilization_over_time,
            "breakdown": breakdown,
            "output": output,
            "wide": wide,
            "columns": columns,
            "force": force,
            "threads": threads,
        },
        progress,
    )


def compare(
    files: PathType | Sequence[PathType],
    *,
    fabric: PathType | Fabric | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    gpu_model: str | None = None,
    network: str | None = None,
    collective: str | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    channels: int | None = None,
    dtype: str | None = None,
    library: str | None = None,
    launch: Literal["graph", "stream"] | None = None,
    processes: Literal["per_gpu", "single"] | None = None,
    registered: Literal["plain", "symmetric"] | None = None,
    no_nvls: bool = False,
    profile: str | None = None,
    no_p2p: bool = False,
    no_gdr: bool = False,
    max_error: float | None = None,
    gate: PathType | None = None,
    junit: PathType | None = None,
    prometheus: PathType | None = None,
    no_explain: bool = False,
    rows: Literal["all", "outside", "none"] | None = None,
    chart: PathType | None = None,
    panel: bool = False,
    bandwidth_axis: Literal["linear", "log"] | None = None,
    output: PathType | None = None,
    wide: bool = False,
    columns: str | Sequence[str] | None = None,
    force: bool = False,
    threads: int | None = None,
    progress: ProgressArgument = None,
) -> Result:
    """Compares measured with predicted times and explains the differences.

    Example::

        comparison = fabricast.compare("all_reduce.txt", fabric="hgx-h200", no_nvls=True)
        comparison.summary["median"]

    Args:
        files: Measurements: manifests (TOML), JSON of ``gpu run``, or nccl-tests logs. A log is the text that
            nccl-tests prints, its JSON (-J), or CSV with the header ``bytes,time_us``.
        fabric: Fabric: preset (``fabric list``), spec (TOML), NCCL topology (XML), ``nvidia-smi topo -m``.
        nodes: Number of hosts; default: the hosts listed in the log, else 1.
        gpus: GPUs in use per host; default: derived from the ranks in the log, else all.
        gpu_model: GPU model if the fabric file has none: a name of ``list gpus``. The name that nvidia-smi or
            rocm-smi prints is accepted too.
        network: Network between hosts: a kind and settings, e.g. ``rail,nics_per_node=8,nic=400Gb/s``. Kinds,
            of which the first is the default: ``rail``: NIC i of every host connects to the switches of rail
            i. ``fat_tree``: leaf, spine and core switches; all NICs of a host connect to the same leaf.
            ``dragonfly``: groups of routers, all-to-all within a group and between groups. ``torus``: each
            host is joined to two neighbours per dimension. ``mnnvl``: one NVLink domain across the hosts
            (multi-node NVLink), without keys. ``tcp-loopback``: TCP sockets between the processes of one
            machine. Keys of rail, fat_tree, dragonfly, torus: ``nics_per_node``: number of NICs per host, 1
            to 256. ``oversubscription``: bandwidth below a leaf divided by that above it, 0.01 to 1000;
            default: 1. ``mtu``: MTU of Ethernet in bytes, 576 to 65535; default: 1500. ``adaptive_routing``:
            NCCL_IB_ADAPTIVE_ROUTING, true or false; default: true with InfiniBand, false with Ethernet.
            ``queue_pairs``: queue pairs of a connection (NCCL_IB_QPS_PER_CONNECTION), 1 to 128; default: 1.
            ``nodes_per_domain``: hosts in use of each NVLink domain of a rack, 1 to 65536; default: all.
            ``sharp``: reduction and multicast in the InfiniBand switches, true or false; default: false. Keys
            of rail, fat_tree, dragonfly, torus, tcp-loopback: ``nic``: line rate of a NIC in each direction,
            as in 400Gb/s. ``nic_latency``: latency of the NICs at both ends of a path and their cables;
            default: 1.3us, of tcp-loopback 40us. ``switch_latency``: latency of one switch and the cable
            behind it; default: 300ns, of tcp-loopback none. ``link``: technology of the cables, infiniband or
            ethernet; default: infiniband, of tcp-loopback ethernet. Keys of rail, fat_tree: ``tiers``: number
            of switch levels, 1 to 8; default: 2 for rail, as many as needed for fat_tree. ``radix``: number
            of ports of a switch, 2 to 4096; default: as many as needed for rail, 64 for fat_tree. ``ecmp``:
            number of equal-cost paths that flows are spread over, 1 to 256. Keys of dragonfly: ``groups``:
            number of groups, 1 to 65536; default: the square root of the number of hosts. Keys of torus:
            ``dimensions``: side lengths in hosts, as in 4x4x2; default: the most cubic shape.
        collective: Collective, if the log does not name it, for example all_reduce.
        algorithm: Forced algorithm (NCCL_ALGO), for example ring; default: the library's choice.
        protocol: Forced protocol (NCCL_PROTO), for example ll128; default: the library's choice.
        channels: Forced number of channels, 1 to 1024; default: the library's choice.
        dtype: Element type, if the log does not name it, for example f32 or bf16.
        library: Library and version, for example nccl-2.28.9; default: that of the log.
        launch: Launch mode, if the log does not name it.
        processes: Process layout, if the log does not show it: one process or thread per GPU, or per host.
        registered: Registration of buffers with the library.
        no_nvls: Disable NVLink SHARP (reduction and multicast in NVSwitches).
        profile: Cost profile: ``ideal``, a shipped name, or a file; default: best match for the GPUs.
        no_p2p: Disable GPU peer-to-peer access: GPUs of a host communicate through host memory.
        no_gdr: Disable GPUDirect RDMA: network traffic passes through host memory.
        max_error: Exit with 1 if the median absolute relative error is larger, for example 0.1 for 10 %.
        gate: Rules that the measured rows must meet (TOML); exit with 1 if one is not met. docs/gate.md
            describes the keys. A rule limits the measured share of the expected bus bandwidth, the bus
            bandwidth, or the time.
        junit: Write the gate's results as JUnit XML.
        prometheus: Write the gate's results and all bus bandwidths as Prometheus metrics.
        no_explain: Skip the search for the profile parameter that would explain a group's error.
        rows: Rows of the text table; JSON and CSV contain all rows. Default: all rows if there is a single
            group, otherwise the rows outside their prediction interval.
        chart: Draw measured against predicted times, and residuals by size (.svg, .png or .pdf).
        panel: Draw a row per group in the chart instead: measured and predicted time and bus bandwidth.
        bandwidth_axis: Scale of the panel's axes of bus bandwidths [default: log if a linear axis hides small
            sizes]
        output: Write the result to a file instead of standard output. Without it, ``report`` writes
            report.html. ``study``, ``man``, and ``table`` with a format of several files write to a folder,
            which is created if missing.
        wide: Show all columns of tables; default: as many as fit the width of the terminal (or COLUMNS).
        columns: Columns of tables to show in text, by name or JSON key, for example ``size,busbw``.
        force: Overwrite existing files, even if they were changed or not written by fabricast.
        threads: Number of threads, which does not affect results; default: all cores.
        progress: True shows a bar of tqdm after a second, if that is installed. A function receives a
            :class:`fabricast.Progress` about ten times per second, on this thread, and at the end; its
            exception stops the command. The result does not depend on it.

    Returns:
        A row for each measurement: file, collective, ranks, nodes, bytes, algorithm, protocol, launch,
        measured_us, predicted_us, low_us, high_us, error (predicted/measured - 1), verdict. Attributes:
        summary, groups, rejected and others.

    Raises:
        FabricastError: Wrong flags or input, with file, line and column where they are in a file. A median
            error above ``max_error`` (exit code 1, with the comparison as ``result``).
    """
    return result(
        ["compare"],
        [*several(files)],
        {
            "fabric": fabric,
            "nodes": nodes,
            "gpus": gpus,
            "gpu_model": gpu_model,
            "network": network,
            "collective": collective,
            "algorithm": algorithm,
            "protocol": protocol,
            "channels": channels,
            "dtype": dtype,
            "library": library,
            "launch": launch,
            "processes": processes,
            "registered": registered,
            "no_nvls": no_nvls,
            "profile": profile,
            "no_p2p": no_p2p,
            "no_gdr": no_gdr,
            "max_error": max_error,
            "gate": gate,
            "junit": junit,
            "prometheus": prometheus,
            "no_explain": no_explain,
            "rows": rows,
            "chart": chart,
            "panel": panel,
            "bandwidth_axis": bandwidth_axis,
            "output": output,
            "wide": wide,
            "columns": columns,
            "force": force,
            "threads": threads,
        },
        progress,
    )


def calibrate(
    manifests: PathType | Sequence[PathType],
    *,
    profile: str | None = None,
    prior: str | None = None,
    name: str | None = None,
    date: str | None = None,
    network: str | None = None,
    hold_out: str | Sequence[str] | None = None,
    chart: PathType | None = None,
    output: PathType | None = None,
    wide: bool = False,
    columns: str | Sequence[str] | None = None,
    force: bool = False,
    threads: int | None = None,
    progress: ProgressArgument = None,
) -> Result:
    """Fits a cost profile to measurements. ``output`` receives the profile.

    Example::

        fit = fabricast.calibrate("manifest.toml", output="my-profile.toml")
        fit.fit["median"]

    Args:
        manifests: Measurements: manifests (TOML), JSON of ``gpu run`` or ``gpu bench``, or one study. Device
            costs are fitted to the first manifest or ``gpu run`` file, together with the launch costs of its
            launch modes. Later files only add the launch costs of other modes. A ``gpu bench`` file adds the
            rates of copy engines and PCIe. If the only input is a study file with measured steps, the
            efficiency curve of kernels is fitted instead.
        profile: Starting profile of the fit: a shipped name or a file; default: best match for the GPUs.
            Parameters that no row determines keep the values of this profile.
        prior: Prior of device costs around the starting profile: ``open``, ``plain`` or ``proportional``.
            ``open``: parameters are free; for data that determine nearly all of them. ``plain``: as ``open``,
            but with equal weights of all rows and without default values for undetermined combinations; for
            data with several numbers of GPUs. ``proportional``: all times differ from the starting profile by
            a common factor, and single parameters deviate only on clear evidence; for few rows of another
            device.
        name: Name of the new profile; default: the name of the starting profile.
        date: Date of the measurements, for example 2026-11-20; default: the starting profile's date.
        network: Fit only the costs of a network and write them under this name, for example ``efa-p5``. GPU
            and launch costs come from ``profile``, or from the shipped profile of each machine. The fit uses
            the rows of several hosts whose network is the shipped network of this name, or all rows of
            several hosts if there are none. The prediction interval is derived by holding out one cluster at
            a time.
        hold_out: Rows held out for validation, for example gpus=2 or protocol=ll; may be repeated. These rows
            are predicted by a second fit to all other rows. Keys: gpus=2, nodes=4,
            collective=all_gather,reduce_scatter, protocol=ll, cluster=TEXT (part of the manifest's
            ``cluster``, or of ``hardware`` if there is none).
        chart: Draw errors, and parameters with their intervals, to this file (.svg or .png).
        output: Write the result to a file instead of standard output. Without it, ``report`` writes
            report.html. ``study``, ``man``, and ``table`` with a format of several files write to a folder,
            which is created if missing.
        wide: Show all columns of tables; default: as many as fit the width of the terminal (or COLUMNS).
        columns: Columns of tables to show in text, by name or JSON key, for example ``size,busbw``.
        force: Overwrite existing files, even if they were changed or not written by fabricast.
        threads: Number of threads, which does not affect results; default: all cores.
        progress: True shows a bar of tqdm after a second, if that is installed. A function receives a
            :class:`fabricast.Progress` about ten times per second, on this thread, and at the end; its
            exception stops the command. The result does not depend on it.

    Returns:
        A row for each fitted parameter: name, value, low, high, unit. Attributes: profile, fit, held_out,
        band and others. Of a study: a row for each measured step, and the figures of the efficiency curve.

    Raises:
        FabricastError: Wrong flags or input, with file, line and column where they are in a file.
    """
    return result(
        ["calibrate"],
        [*several(manifests)],
        {
            "profile": profile,
            "prior": prior,
            "name": name,
            "date": date,
            "network": network,
            "hold_out": hold_out,
            "chart": chart,
            "output": output,
            "wide": wide,
            "columns": columns,
            "force": force,
            "threads": threads,
        },
        progress,
    )


def study(
    study: PathType | None = None,
    *,
    template: bool = False,
    shard: str | None = None,
    merge: PathType | Sequence[PathType] | None = None,
    trace: PathType | None = None,
    slurm: int | None = None,
    submit: bool = False,
    partition: str | None = None,
    account: str | None = None,
    time: str | None = None,
    output: PathType | None = None,
    wide: bool = False,
    columns: str | Sequence[str] | None = None,
    force: bool = False,
    threads: int | None = None,
    progress: ProgressArgument = None,
) -> Any:
    """Compares machines for training and inference jobs: time, memory, cost and bottlenecks.

    Example::

        study = fabricast.study("examples/training-70b.toml")
        study.ranking[0]["candidate"]

    Args:
        study: Study file (TOML): candidates, jobs, constraints, sensitivities and assumptions. ``template``
            writes an example. With ``-o DIR`` the folder receives results.json, a page (index.html), the
            ranking as text and as a table (ranking.txt, ranking.csv), and runs.jsonl, to which each finished
            run is appended. If the command is repeated, only missing runs are computed.
        template: Write an example study file.
        shard: Compute every N-th run only, starting at run I, into the folder of ``-o``, e.g. ``2/4``.
            Divides a study among N machines; ``merge`` combines the results.
        merge: Merge the results of shards of the same study from these folders; place it after STUDY.
        trace: Write a Chrome trace for Perfetto: the steps of each job on each candidate, a process per
            pipeline stage. Threads are computation, overlapped communication and waiting time; arrows connect
            what waits.
        slurm: Write job scripts for Slurm: an array of N tasks, one shard each, and a final merge. The folder
            of ``-o`` receives tasks.sbatch, merge.sbatch and submit.sh, which submits both. The merge writes
            the results to the same folder; the shards are in ``shards``, the logs in ``logs``. The folder
            must be on storage that all hosts share. Requeued tasks do not repeat saved runs. Run ``bash
            submit.sh`` again to compute missing runs.
        submit: Submit the scripts with sbatch.
        partition: Partition of the jobs.
        account: Account of the jobs.
        time: Time limit of each task, in Slurm's format, e.g. ``30`` minutes or ``1:00:00``.
        output: Write the result to a file instead of standard output. Without it, ``report`` writes
            report.html. ``study``, ``man``, and ``table`` with a format of several files write to a folder,
            which is created if missing.
        wide: Show all columns of tables; default: as many as fit the width of the terminal (or COLUMNS).
        columns: Columns of tables to show in text, by name or JSON key, for example ``size,busbw``.
        force: Overwrite existing files, even if they were changed or not written by fabricast.
        threads: Number of threads, which does not affect results; default: all cores.
        progress: True shows a bar of tqdm after a second, if that is installed. A function receives a
            :class:`fabricast.Progress` about ten times per second, on this thread, and at the end; its
            exception stops the command. The result does not depend on it.

    Returns:
        A row for each candidate and job: candidate, job, ranks, step_time_s, tokens_per_s,
        exposed_comm_share, memory_gb, fits, cost_per_hour, cost_per_million_tokens, bottleneck and others.
        Attributes: ranking, candidates, jobs and others. The file's example as a str with ``template``; None
        with ``shard``, which only writes the folder of ``output``.

    Raises:
        FabricastError: Wrong flags or input, with file, line and column where they are in a file.
    """
    return any_result(
        ["study"],
        [*given(study)],
        {
            "template": template,
            "shard": shard,
            "merge": merge,
            "trace": trace,
            "slurm": slurm,
            "submit": submit,
            "partition": partition,
            "account": account,
            "time": time,
            "output": output,
            "wide": wide,
            "columns": columns,
            "force": force,
            "threads": threads,
        },
        progress,
    )


def synthesize(
    fabric: PathType | Fabric,
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    network: str | None = None,
    gpu_model: str | None = None,
    mig: str | Sequence[str] | None = None,
    no_p2p: bool = False,
    ecmp: str | None = None,
    no_gdr: bool = False,
    buffers: str | None = None,
    collective: str,
    bytes: int | str | None = None,
    dtype: str | None = None,
    root: int | None = None,
    in_place: bool = False,
    protocol: str | None = None,
    channels: int | None = None,
    chunk: int | str | None = None,
    trees: int | str | None = None,
    profile: str | None = None,
    launch: Literal["graph", "stream"] | None = None,
    processes: Literal["per_gpu", "single"] | None = None,
    fail: str | Sequence[str] | None = None,
    slow: str | Sequence[str] | None = None,
    output: PathType | None = None,
    force: bool = False,
    threads: int | None = None,
    progress: ProgressArgument = None,
) -> Schedule:
    """Packs spanning trees into the links of a fabric and builds the schedule that moves the data over them.

    Example::

        fabric = fabricast.Fabric("mi300x", fail="gpu0-gpu1")
        schedule = fabricast.synthesize(fabric, collective="all_gather", bytes="64MiB", trees=4)
        schedule.certify(fabric).gap

    Args:
        fabric: Fabric: preset (``fabric list``), spec (TOML), NCCL topology (XML), ``nvidia-smi topo -m``.
        nodes: Number of hosts; a preset or file of one host is replicated.
        gpus: GPUs in use per host; default: all.
        network: Network between hosts: a kind and settings, e.g. ``rail,nics_per_node=8,nic=400Gb/s``. Kinds,
            of which the first is the default: ``rail``: NIC i of every host connects to the switches of rail
            i. ``fat_tree``: leaf, spine and core switches; all NICs of a host connect to the same leaf.
            ``dragonfly``: groups of routers, all-to-all within a group and between groups. ``torus``: each
            host is joined to two neighbours per dimension. ``mnnvl``: one NVLink domain across the hosts
            (multi-node NVLink), without keys. ``tcp-loopback``: TCP sockets between the processes of one
            machine. Keys of rail, fat_tree, dragonfly, torus: ``nics_per_node``: number of NICs per host, 1
            to 256. ``oversubscription``: bandwidth below a leaf divided by that above it, 0.01 to 1000;
            default: 1. ``mtu``: MTU of Ethernet in bytes, 576 to 65535; default: 1500. ``adaptive_routing``:
            NCCL_IB_ADAPTIVE_ROUTING, true or false; default: true with InfiniBand, false with Ethernet.
            ``queue_pairs``: queue pairs of a connection (NCCL_IB_QPS_PER_CONNECTION), 1 to 128; default: 1.
            ``nodes_per_domain``: hosts in use of each NVLink domain of a rack, 1 to 65536; default: all.
            ``sharp``: reduction and multicast in the InfiniBand switches, true or false; default: false. Keys
            of rail, fat_tree, dragonfly, torus, tcp-loopback: ``nic``: line rate of a NIC in each direction,
            as in 400Gb/s. ``nic_latency``: latency of the NICs at both ends of a path and their cables;
            default: 1.3us, of tcp-loopback 40us. ``switch_latency``: latency of one switch and the cable
            behind it; default: 300ns, of tcp-loopback none. ``link``: technology of the cables, infiniband or
            ethernet; default: infiniband, of tcp-loopback ethernet. Keys of rail, fat_tree: ``tiers``: number
            of switch levels, 1 to 8; default: 2 for rail, as many as needed for fat_tree. ``radix``: number
            of ports of a switch, 2 to 4096; default: as many as needed for rail, 64 for fat_tree. ``ecmp``:
            number of equal-cost paths that flows are spread over, 1 to 256. Keys of dragonfly: ``groups``:
            number of groups, 1 to 65536; default: the square root of the number of hosts. Keys of torus:
            ``dimensions``: side lengths in hosts, as in 4x4x2; default: the most cubic shape.
        gpu_model: GPU model if the fabric file has none: a name of ``list gpus``. The name that nvidia-smi or
            rocm-smi prints is accepted too.
        mig: Split a GPU into MIG instances, for example ``gpu0=3g.71gb,4g.71gb``; may be repeated. Each
            instance is a rank in place of the GPU. To split several GPUs: ``gpu[0-7]=7g.141gb``.
        no_p2p: Disable GPU peer-to-peer access: GPUs of a host communicate through host memory.
        ecmp: Load balancing over equal-cost network paths: ``averaged``, ``hashed`` or ``hashed=SEED``.
            ``averaged`` spreads each flow evenly over all equal-cost paths. ``hashed`` selects one path by a
            hash of the flow's endpoints, so flows may collide. Default: averaged.
        no_gdr: Disable GPUDirect RDMA: network traffic passes through host memory.
        buffers: Location of send and receive buffers; default: device. ``device``: GPU memory. ``pinned``,
            ``pageable``: host memory. ``managed``: unified memory, whose pages start on the CPU and move to
            the GPU when first read, at the rate of a prefetch. ``grace``: CPU memory over NVLink-C2C.
            ``peer=gpu0``: memory of another GPU.
        collective: all_gather, reduce_scatter, all_reduce, broadcast or reduce.
        bytes: Size of the call: the larger of a rank's send and receive buffers, as a number of bytes or with
            a unit, for example ``64MiB``. Default: 1 MiB.
        dtype: Element type, for example f32 or bf16. Sizes are rounded down to whole elements, as in
            nccl-tests. Without a type, sizes are used as given.
        root: Root rank of broadcast and reduce. Default: 0.
        in_place: Use the same buffer for input and output.
        protocol: Protocol: ll, ll128, simple or symmetric. Default: by predicted time.
        channels: Number of channels, 1 to 1024; a channel is one thread block. Default: by predicted time.
        chunk: Maximum chunk size of a step, for example 512KiB; default: the protocol's.
        trees: Trees of tree_packing: at most K per root, 1 to 256; optimal; or widened-2, widened-4,
            widened-16, which are shallower and use a part of the bandwidth; default: the fastest.
        profile: Cost profile: ``ideal``, a shipped name, or a file; default: best match for the GPUs.
        launch: Launch mode of calls. Default: graph.
        processes: Process layout: one process or thread per GPU, or one process per host. Default: per_gpu.
        fail: Take a link (``a->b``, ``a-b``) or a device out of service; may be repeated.
        slow: Reduce a link to a fraction of its bandwidth, e.g. ``gpu0-nvswitch0=0.5``; may be repeated.
        output: File to which the schedule is written as JSON.
        force: Overwrite existing files, even if they were changed or not written by fabricast.
        threads: Number of threads, which does not affect results; default: all cores.
        progress: True shows a bar of tqdm after a second, if that is installed. A function receives a
            :class:`fabricast.Progress` about ten times per second, on this thread, and at the end; its
            exception stops the command. The result does not depend on it.

    Returns:
        A schedule of the algorithm tree_packing for 2 to 128 ranks. Its ``certificate`` has a cut, whose
        bandwidth bounds every schedule, the trees and both times in picoseconds; ``certify(fabric)`` checks
        it and returns the gap.

    Raises:
        FabricastError: Wrong flags or input, with file, line and column where they are in a file. The fabric
            has no packing: it is disconnected, bandwidths are missing or differ too much, or ranks share a
            device.
    """
    return schedule(
        ["schedule", "generate"],
        [],
        {
            "fabric": fabric,
            "nodes": nodes,
            "gpus": gpus,
            "network": network,
            "gpu_model": gpu_model,
            "mig": mig,
            "no_p2p": no_p2p,
            "ecmp": ecmp,
            "no_gdr": no_gdr,
            "buffers": buffers,
            "collective": collective,
            "bytes": bytes,
            "dtype": dtype,
            "root": root,
            "in_place": in_place,
            "algorithm": "tree_packing",
            "protocol": protocol,
            "channels": channels,
            "chunk": chunk,
            "trees": trees,
            "profile": profile,
            "launch": launch,
            "processes": processes,
            "fail": fail,
            "slow": slow,
            "to": "json",
            "output": output,
            "force": force,
            "threads": threads,
        },
        progress,
    )


def verify(
    file: PathType | Schedule,
    *,
    fifo_depth: int | None = None,
    output: PathType | None = None,
    wide: bool = False,
    columns: str | Sequence[str] | None = None,
    force: bool = False,
    threads: int | None = None,
) -> Result:
    """Proves that a schedule file computes its collective, without races and deadlocks.

    Example::

        fabricast.verify("ring.xml").operations

    Args:
        file: Schedule file: fabricast JSON, MSCCL XML or MSCCL++ JSON.
        fifo_depth: Maximum number of unread transfers per connection, as in FIFO protocols.
        output: Write the result to a file instead of standard output. Without it, ``report`` writes
            report.html. ``study``, ``man``, and ``table`` with a format of several files write to a folder,
            which is created if missing.
        wide: Show all columns of tables; default: as many as fit the width of the terminal (or COLUMNS).
        columns: Columns of tables to show in text, by name or JSON key, for example ``size,busbw``.
        force: Overwrite existing files, even if they were changed or not written by fabricast.
        threads: Number of threads, which does not affect results; default: all cores.

    Returns:
        A row: ok (true) and operations, the number of verified operations.

    Raises:
        FabricastError: Wrong flags or input, with file, line and column where they are in a file. A schedule
            that is wrong: exit code 1, and ``error.result.fault`` has operation, rank, chunk, found and
            expected.
    """
    return result(
        ["schedule", "verify"],
        [*given(file)],
        {
            "fifo_depth": fifo_depth,
            "output": output,
            "wide": wide,
            "columns": columns,
            "force": force,
            "threads": threads,
        },
    )
