"""Fabrics: presets, files and clusters of them."""

from __future__ import annotations

from collections.abc import Sequence

from ._call import FabricArgument, PathType, result, run
from ._result import Result


class Fabric(FabricArgument):
    """Fabric of GPUs and links: a preset, a file, or hosts of one on a network, with failed and slowed links.

    The object is a description. Each call reads the file again, so changes take effect. Example::

        >>> fabric = fabricast.Fabric("hgx-h200", nodes=2, fail="n0/nic0")
        >>> fabricast.simulate(fabric, collective="all_reduce", bytes="64MiB", algorithm="ring").ranks
        16

    Args:
        fabric: Preset (``Fabric.presets()``), or the path of a spec (TOML), an NCCL topology (XML) or the output of
            ``nvidia-smi topo -m``. ``"auto"`` is this machine, which needs its GPUs.
        nodes: Number of hosts; a preset or file of one host is replicated.
        gpus: GPUs in use per host; default: all.
        network: Network between hosts, for example ``"rail,nics_per_node=8,nic=400Gb/s"``.
        gpu_model: GPU model, if the file has none.
        mig: GPUs split into MIG instances, for example ``"gpu0=3g.71gb,4g.71gb"``.
        no_p2p: GPUs of a host communicate through host memory.
        ecmp: Load balancing over equal-cost paths: ``"averaged"``, ``"hashed"`` or ``"hashed=SEED"``.
        no_gdr: Network traffic passes through host memory.
        fail: Links (``"a->b"``, ``"a-b"``) and devices out of service.
        slow: Links with a fraction of their bandwidth, for example ``"gpu0-nvswitch0=0.5"``.
    """

    def __init__(
        self,
        fabric: PathType,
        *,
        nodes: int | None = None,
        gpus: int | None = None,
        network: str | None = None,
        gpu_model: str | None = None,
        mig: str | Sequence[str] | None = None,
        no_p2p: bool = False,
        ecmp: str | None = None,
        no_gdr: bool = False,
        fail: str | Sequence[str] | None = None,
        slow: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            fabric,
            {
                "nodes": nodes,
                "gpus": gpus,
                "network": network,
                "gpu_model": gpu_model,
                "mig": mig,
                "no_p2p": no_p2p,
                "ecmp": ecmp,
                "no_gdr": no_gdr,
                "fail": fail,
                "slow": slow,
            },
        )

    @staticmethod
    def presets() -> Result:
        """Returns the presets, a row each: name, nodes, gpus, model, gpu_link_gb_per_s, nics."""
        return result(["fabric", "list"], [], {})

    def show(self) -> Result:
        """Returns a row for each direction of a link, and ``nodes``, ``gpus`` and ``paths`` as attributes.

        Columns: id, a, b, kind, bandwidth_gb_per_s (null: unlimited), latency_ns, lanes.

        Raises:
            FabricastError: The fabric cannot be read or expanded; with file, line and column.
        """
        return result(["fabric", "show"], [self._name], self._flags)

    def check(self) -> Result:
        """Returns problems and unusual properties of the fabric, a row each; no rows if there are none.

        Raises:
            FabricastError: The fabric cannot be read (exit code 2), or has errors (1, with the findings as ``result``).
        """
        return result(["fabric", "check"], [self._name], self._flags)

    def export(self, to: str = "spec") -> str:
        """Returns the text of the fabric in a format: ``"spec"``, ``"nccl-xml"``, ``"dot"``, ``"svg"`` or ``"json"``.

        Raises:
            FabricastError: The format cannot express the fabric.
        """
        return run(["fabric", "export"], [self._name], {**self._flags, "to": to}) or ""

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self._flags.items() if value not in (None, False))
        return f"Fabric({self._name!r}{settings})"
