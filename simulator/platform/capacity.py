"""Accelerators of a cluster: which node has how many free, and who holds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rlhfless.errors import UserError
from rlhfless.messages import FunctionName
from simulator.cluster import Cluster, Pool


@dataclass(eq=False)
class Node:
    """``present`` is False while a preempted node is away."""

    name: str
    pool: Pool
    spot: bool
    free: int
    present: bool = True


@dataclass(frozen=True, eq=False)
class Grant:
    """Accelerators that an instance holds, by node. ``spot`` if any of them may be preempted."""

    parts: tuple[tuple[Node, int], ...]

    @property
    def pool(self) -> Pool:
        return self.parts[0][0].pool

    @property
    def node(self) -> str:
        return self.parts[0][0].name

    @property
    def spot(self) -> bool:
        return any(node.spot for node, _ in self.parts)

    @property
    def accelerators(self) -> int:
        return sum(count for _, count in self.parts)


@dataclass
class Capacity:
    """``unlimited``: accelerators are shared freely, as processes share a machine's cores."""

    nodes: list[Node]
    unlimited: bool = False
    _by_pool: dict[str, list[Node]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.nodes:
            self._by_pool.setdefault(node.pool.name, []).append(node)

    def take(self, pool: Pool, count: int, *, spot: bool) -> Grant | None:
        """``count`` accelerators: of one node where they fit into one (the fullest that has them,
        spot nodes first), else of several. ``spot``: whether preemptible nodes will do. None: not
        enough are free."""
        parts = self._find(pool, count, spot)
        if parts is None:
            return None
        for node, number in parts:
            node.free -= 0 if self.unlimited else number
        return Grant(tuple(parts))

    def give(self, grant: Grant) -> None:
        for node, number in grant.parts:
            node.free += 0 if self.unlimited else number

    def makes_room(
        self, pool: Pool, count: int, idle: Iterable[Grant], *, spot: bool
    ) -> list[Grant] | None:
        """Of ``idle`` grants, the first that, given back, let ``take`` succeed; None if not even
        all of them do. An instance that fits into a node needs only those of one."""
        free = {node: node.free for node in self._usable(pool, spot)}
        total = sum(free.values())
        if count > pool.per_node and total >= count:
            return []
        if count <= pool.per_node and max(free.values(), default=0) >= count:
            return []
        given: dict[Node, list[Grant]] = {}
        everything: list[Grant] = []
        for grant in idle:
            nodes = [node for node, _ in grant.parts if node in free]
            if not nodes:
                continue
            everything.append(grant)
            for node, number in grant.parts:
                if node in free:
                    free[node] += number
                    total += number
                    given.setdefault(node, []).append(grant)
            if count > pool.per_node:
                if total >= count:
                    return everything
                continue
            for node in nodes:
                if free[node] >= count:
                    return given[node]
        return None

    def _usable(self, pool: Pool, spot: bool) -> list[Node]:
        nodes = self._by_pool.get(pool.name, ())
        return [node for node in nodes if node.present and (spot or not node.spot)]

    def _find(self, pool: Pool, count: int, spot: bool) -> list[tuple[Node, int]] | None:
        nodes = self._usable(pool, spot)
        if count <= pool.per_node:
            fitting = [node for node in nodes if node.free >= count]
            if not fitting:
                return None
            best = min(fitting, key=lambda node: (not node.spot, node.free))
            return [(best, count)]
        parts = []
        for node in sorted(nodes, key=lambda n: -n.free):
            number = min(count, node.free)
            if number > 0:
                parts.append((node, number))
                count -= number
            if count == 0:
                return parts
        return None


def make_nodes(pools: Iterable[Pool]) -> list[Node]:
    """The last nodes of a pool are its preemptible ones, where those are used as such."""
    return [
        Node(
            name=f"{pool.name}-{number}",
            pool=pool,
            spot=pool.use_spot and number >= pool.nodes - pool.spot_nodes,
            free=pool.per_node,
        )
        for pool in pools
        for number in range(pool.nodes)
    ]


def check_room(
    cluster: Cluster,
    most: Mapping[FunctionName, int],
    sizes: Mapping[FunctionName, Sequence[tuple[Pool, int]]],
) -> None:
    """Where accelerators are not shared, every function must find its own beside the others: so
    many instances as ``most`` says, each of the accelerators of one of its ``sizes``."""
    if cluster.sharing != "exclusive":
        return
    free = {pool.name: pool.accelerators for pool in cluster.pools.values()}
    for function in sorted(most, key=lambda f: f == "rollout"):  # rollout gets what is left
        for number in range(most[function]):
            home = next(((p, n) for p, n in sizes[function] if free[p.name] >= n), None)
            if home is None:
                raise UserError(
                    f"{function}.max_instances: {most[function]} do not fit beside the other "
                    f"functions of {cluster.name}, whose accelerators are not shared; at most "
                    f"{number} do",
                    param=f"{function}.max_instances",
                    hint=None if number else "use sharing: time_shared, or a larger cluster",
                )
            free[home[0].name] -= home[1]
