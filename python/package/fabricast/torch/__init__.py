"""Collectives of PyTorch tensors by generated kernels, with a plan that selects the strategy of each call.

::

    import torch.distributed as dist
    from fabricast.torch import Communicator

    communicator = Communicator(dist.group.WORLD)      # one process per GPU, all of them on one host
    communicator.all_reduce(tensor)                    # on the current stream; may be captured in a CUDA graph

Calls that the kernels do not run are passed to ``torch.distributed``, with a :class:`~fabricast.FabricastWarning` for
each reason.
"""

from ._communicator import Communicator

__all__ = ["Communicator"]
