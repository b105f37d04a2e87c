"""Runs one MPI call without a compiler: calls.py COLLECTIVE BYTES. Handles are those of Open MPI."""

import ctypes
import sys

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)


def handle(name):
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))


world, byte, add = handle("ompi_mpi_comm_world"), handle("ompi_mpi_byte"), handle("ompi_mpi_op_bor")
mpi.MPI_Init(None, None)
ranks = ctypes.c_int()
mpi.MPI_Comm_size(world, ctypes.byref(ranks))
size = int(sys.argv[2])
block = size // ranks.value
send, receive = ctypes.create_string_buffer(size + 1), ctypes.create_string_buffer(size + 1)
failed = {
    "all_reduce": lambda: mpi.MPI_Allreduce(send, receive, size, byte, add, world),
    "all_gather": lambda: mpi.MPI_Allgather(send, block, byte, receive, block, byte, world),
    "broadcast": lambda: mpi.MPI_Bcast(send, size, byte, 0, world),
    "all_to_all": lambda: mpi.MPI_Alltoall(send, block, byte, receive, block, byte, world),
}[sys.argv[1]]()
mpi.MPI_Finalize()
sys.exit(1 if failed else 0)
