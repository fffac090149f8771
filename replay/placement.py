"""Where a job's hosts hang on the fabric: host maps as CSV, or Slurm's topology.conf.

A map gives each host the switch of every tier, lowest first. A CSV has a column ``host`` and one
column for each tier, such as ``host,leaf,pod``. Of topology.conf the lines ``SwitchName=leaf1
Nodes=node[01-16]`` and ``SwitchName=pod1 Switches=leaf[1-4]`` are read.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretrace.replay.cluster import Cluster
from foretrace.traces.errors import LayoutError

_BRACKETS = re.compile(r"^(.*?)\[([^\]]+)\](.*)$")
_OUTER_COMMA = re.compile(r",(?![^\[]*\])")
_KEY = re.compile(r"(\w+)=(\S+)")
_MOST_HOSTS = 1_000_000


@dataclass(frozen=True, slots=True)
class HostMap:
    """Switches above each host.

    Attributes:
        tiers: names of the tiers, lowest first.
        switches: for each host its switch of every tier.
    """

    tiers: tuple[str, ...]
    switches: dict[str, tuple[str, ...]]

    def above(self, hosts: Iterable[str]) -> list[tuple[str, ...]]:
        """Switches of these hosts.

        Raises:
            LayoutError: one of them is not on the map.
        """
        found = []
        for host in hosts:
            if host not in self.switches:
                raise LayoutError(
                    f"host {host!r} is not on the map, which has {len(self.switches)} hosts"
                )
            found.append(self.switches[host])
        return found


def read_host_map(path: str | Path) -> HostMap:
    """Read a CSV or a topology.conf.

    Raises:
        LayoutError: neither, or a host without a switch.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LayoutError(f"{path}: cannot be read as a host map: {error}") from error
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    if any(line.lower().startswith("switchname=") for line in lines):
        return _read_slurm(lines, str(path))
    return _read_csv(lines, str(path))


def group_share(hosts: Sequence[str], where: HostMap, cluster: Cluster) -> float:
    """Part of its NICs' bandwidth that a ring or tree over these hosts keeps.

    Below a switch of a tier with oversubscription o, g of the group's hosts share one crossing
    flow of the ring: the uplinks carry o times less than all g hosts could send, but only one
    host's worth has to cross, so the group keeps min(1, g / o) of its bandwidth. Rail-optimised
    leaves are one tier here: their rails cross nothing.

    Args:
        hosts: hosts of the group.
        where: their switches.
        cluster: oversubscription of each tier, by name.

    Returns:
        0 < share <= 1.

    Raises:
        LayoutError: a host is not on the map, or a tier of the map is unknown to the cluster.
    """
    above, share = where.above(dict.fromkeys(hosts)), 1.0
    tapers = {tier.name: tier.oversubscription for tier in cluster.tiers}
    for level, tier in enumerate(where.tiers):
        if tier not in tapers:
            raise LayoutError(
                f"the host map has a tier {tier!r}, cluster {cluster.name} has "
                f"{', '.join(tapers) or 'none'}: name its tiers alike"
            )
        below = Counter(switches[level] for switches in above)
        if len(below) > 1:
            share *= min(1.0, min(below.values()) / tapers[tier])
    return share


def shared_nics(groups: Sequence[Sequence[tuple[str, int]]], cluster: Cluster) -> list[float]:
    """Part of its NICs that each of several groups has when all communicate at once.

    A group uses the NICs nearest to its GPUs; NICs that several groups use are split evenly
    between them, and a group goes at the speed of its most crowded NIC.

    Args:
        groups: for each group its members as (host, GPU number on that host).
        cluster: the machine.

    Returns:
        0 < share <= 1 for each group.
    """
    per_nic = cluster.gpus_per_node / cluster.nics_per_node
    used = [{(host, int(gpu // per_nic)) for host, gpu in group} for group in groups]
    several = [len({host for host, _ in group}) > 1 for group in groups]
    crowd = Counter(nic for nics, over in zip(used, several, strict=True) if over for nic in nics)
    return [
        1 / max(crowd[nic] for nic in nics) if over else 1.0
        for nics, over in zip(used, several, strict=True)
    ]


def host_names(text: str) -> list[str]:
    """Expand Slurm's host list: ``node[01-03,7],gpu1``.

    Raises:
        LayoutError: brackets or ranges that cannot be read.
    """
    out: list[str] = []
    for part in _OUTER_COMMA.split(text):
        out += _expand(part.strip())
    return out


def _expand(part: str) -> list[str]:
    found = _BRACKETS.match(part)
    if not found:
        if "[" in part or "]" in part:
            raise LayoutError(f"cannot read the host list {part!r}")
        return [part] if part else []
    head, inner, tail = found.groups()
    numbers: list[str] = []
    for item in inner.split(","):
        low, dash, high = item.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise LayoutError(f"cannot read the range {item!r} in the host list {part!r}")
        last = int(high) if dash else int(low)
        if last - int(low) >= _MOST_HOSTS:
            raise LayoutError(f"the host list {part!r} names more than {_MOST_HOSTS} hosts")
        numbers += [f"{n:0{len(low)}d}" for n in range(int(low), last + 1)]
    return [name for number in numbers for name in _expand(f"{head}{number}{tail}")]


def _read_csv(lines: list[str], where: str) -> HostMap:
    rows = list(csv.reader(lines))
    if not rows or "host" not in rows[0] or len(rows[0]) < 2:
        raise LayoutError(f"{where}: expected a CSV head such as host,leaf,pod")
    head = [name.strip() for name in rows[0]]
    place = head.index("host")
    tiers = tuple(name for name in head if name != "host")
    switches = {}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(head) or not all(cell.strip() for cell in row):
            raise LayoutError(f"{where}: row {number}: expected {len(head)} filled cells")
        cells = [cell.strip() for cell in row]
        switches[cells[place]] = tuple(c for n, c in enumerate(cells) if n != place)
    return HostMap(tiers, switches)


def _read_slurm(lines: list[str], where: str) -> HostMap:
    children: dict[str, list[str]] = {}
    leaves: dict[str, list[str]] = {}
    for line in lines:
        keys = {key.lower(): value for key, value in _KEY.findall(line)}
        for name in host_names(keys.get("switchname", "")):
            if "nodes" in keys:
                leaves[name] = host_names(keys["nodes"])
            elif "switches" in keys:
                children[name] = host_names(keys["switches"])
    parent = {child: name for name, below in children.items() for child in below}
    chains = {leaf: _chain(leaf, parent, where) for leaf in leaves}
    depth = max((len(chain) for chain in chains.values()), default=0)
    if not depth or any(len(chain) != depth for chain in chains.values()):
        raise LayoutError(f"{where}: expected every leaf switch under equally many switches")
    tiers = ("leaf", "pod", *(f"tier{n}" for n in range(3, depth + 1)))[:depth]
    return HostMap(tiers, {h: chains[leaf] for leaf, hosts in leaves.items() for h in hosts})


def _chain(leaf: str, parent: dict[str, str], where: str) -> tuple[str, ...]:
    chain = [leaf]
    while chain[-1] in parent:
        above = parent[chain[-1]]
        if above in chain:
            raise LayoutError(f"{where}: switch {above!r} is above itself")
        chain.append(above)
    return tuple(chain)
