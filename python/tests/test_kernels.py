"""Kernels of schedules: source, launch configuration and parameters."""

import re
import struct

import pytest

import fabricast
from fabricast import _fabricast

H100 = dict(multiprocessors=132, capability=90)
STRATEGIES = [
    ("all_reduce", "one_shot"),
    ("all_reduce", "two_shot"),
    ("all_reduce", "ring"),
    ("all_gather", "direct"),
    ("reduce_scatter", "direct"),
    ("all_to_all", "direct"),
    ("broadcast", "ring"),
]


def kernel(collective, algorithm, ranks, size, channels=1, dtype="f32", op="sum", **flags):
    schedule = fabricast.Schedule.build(
        "hgx-h100", gpus=ranks, collective=collective, algorithm=algorithm, protocol="symmetric", channels=channels, bytes=size, **flags
    )
    return schedule._file.kernel(dtype, op, **H100)


def constant(source, name):
    return int(re.search(rf"#define {name} (\d+)", source).group(1))


@pytest.mark.parametrize("collective,algorithm", STRATEGIES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_argument_has_the_size_of_the_source_and_peers_write_only_outputs_of_plain_vectors(collective, algorithm, ranks):
    arena = _fabricast.KernelArena(ranks, 64 << 20)
    carriers = set()
    for size in (ranks * 4, ranks * 4096, ranks * 20000 * 4, 1 << 20, 32 << 20):
        for in_place in (False, True):
            one = kernel(collective, algorithm, ranks, size, in_place=in_place)
            carriers.add(one.carrier)
            source = one.source(True)
            assert 'extern "C" __global__ void' in source and "run_kernel" in source
            assert constant(source, "RANKS") == ranks and constant(source, "THREADS") >= one.threads
            if algorithm == "one_shot" and one.carrier == "flags" and ranks > 2:
                continue  # A rank receives the whole buffers of several ranks.
            for rank in range(ranks):
                parameters = one.parameters(rank, arena)
                argument = parameters.resolve(0x1000, [0x2000] * ranks, [0x10000 * (peer + 1) for peer in range(ranks)], 0x30, 77)
                assert len(argument) == 8 * (ranks + 14 + constant(source, "ROWS"))
                numbers = struct.unpack(f"{len(argument) // 8}Q", argument)
                assert list(numbers[:ranks]) == [0x10000 * (peer + 1) for peer in range(ranks)]
                assert numbers[ranks + 1 : ranks + 3] == (0x30, 77)
                assert numbers[ranks + 6] == rank
                if one.carrier != "flags":
                    assert not one.writes_peer_outputs
    assert carriers == {"packets", "lines", "flags"}


def test_alignment_depends_on_addresses_and_on_parts():
    arena = _fabricast.KernelArena(2, 1 << 20)
    aligned = kernel("all_gather", "direct", 2, 4096).parameters(0, arena)
    assert aligned.is_aligned(0x1000, [0x2000, 0x2000])
    assert not aligned.is_aligned(0x1004, [0x2000, 0x2000])
    assert not aligned.is_aligned(0x1000, [0x2008, 0x2000])
    odd_parts = kernel("all_gather", "direct", 2, 8 * 250 * 4 + 8).parameters(1, arena)
    assert not odd_parts.is_aligned(0x1000, [0x2000, 0x2000])


def test_all_ranks_run_the_same_code():
    one = kernel("all_reduce", "two_shot", 4, 1 << 20)
    again = kernel("all_reduce", "two_shot", 4, (1 << 20) + 4096)
    assert one.source(True) == again.source(True)
    assert one.source(True) != one.source(False)


def test_calls_beyond_the_arena_and_unknown_types_are_refused():
    arena = _fabricast.KernelArena(2, 1 << 20)
    with pytest.raises(fabricast.FabricastError, match="too large"):
        kernel("reduce_scatter", "direct", 2, 64 << 20).parameters(0, arena)
    with pytest.raises(fabricast.FabricastError):
        kernel("all_reduce", "one_shot", 2, 1024, dtype="f7")
    with pytest.raises(fabricast.FabricastError):
        kernel("all_reduce", "one_shot", 2, 1024, op="average")


def test_arena_grows_with_the_largest_call():
    small, large = _fabricast.KernelArena(2, 1 << 20), _fabricast.KernelArena(2, 64 << 20)
    assert large.bytes - small.bytes == 2 * (63 << 20)
    assert small.blocks == 256
