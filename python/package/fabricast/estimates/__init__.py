"""Communication times for PyTorch's schedulers, from a fabric and its cost profile.

PyTorch decides by estimated times which collectives to overlap, to bucket and to redistribute. These adapters pass it the
predictions of ``fabricast simulate``, with the library's own choice of algorithm and protocol::

    import torch._inductor.config as inductor
    from fabricast.estimates import CollectiveTimes, RuntimeEstimation

    times = CollectiveTimes("hgx-h200", nodes=2)
    inductor.aten_distributed_optimizations.custom_runtime_estimation = RuntimeEstimation(times)

Importing this module does not import PyTorch. Rank ``r`` of the job is GPU ``r`` of the fabric: hosts in order, as ``torchrun``
numbers them. ``docs/python-torch.md`` states the versions of PyTorch and maps each call of ``torch.distributed``.
"""

from ._dtensor import DTensorCosts, dtensor_costs
from ._groups import Groups, groups_of_dimension, mesh_groups
from ._overlap import RuntimeEstimation
from ._profile import profile_document, write_profile
from ._times import CollectiveTimes

__all__ = [
    "CollectiveTimes",
    "DTensorCosts",
    "Groups",
    "RuntimeEstimation",
    "dtensor_costs",
    "groups_of_dimension",
    "mesh_groups",
    "profile_document",
    "write_profile",
]
