"""What compiled layers keep for the backward pass, where that is to be results of products alone.

Guarantees: gradients are the same, whatever is kept; layers whose attention stays outside of what is compiled
are compiled as they are where nothing is computed again.

A compiler that is shown recomputation as a part of the layer gives up where something inside of it stays
outside of what is compiled: the layer is then computed operator by operator. So it is shown the plain layer,
and told of each operator whether its result may be kept before it divides the layer into a forward and a
backward part.

Imports torch's compiler, which takes seconds.
"""

import operator
from collections.abc import Set
from typing import Any

from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

_GRADIENTS = "tangents"
"""In the names of what the backward part is given."""


class KeepProducts(CustomGraphPass):
    """For the compiler's option `joint_custom_pre_pass`: of a layer's graph, forward and backward in one,
    results of `operators` are kept, and all others computed again."""

    def __init__(self, operators: Set[str]) -> None:
        """`operators` by the names that torch has for them, such as `aten::mm`."""
        self._operators = frozenset(operators)

    def __call__(self, graph: Graph) -> None:
        """Mark what is to be computed again."""
        backward: set[Node] = set()
        for node in graph.nodes:
            given = node.op == "placeholder" and _GRADIENTS in node.name
            if given or any(each in backward for each in node.all_input_nodes):
                backward.add(node)
            elif node.op == "call_function" and not self._kept(node):
                node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE

    def _kept(self, node: Node) -> bool:
        # One of several results.
        if node.target is operator.getitem:
            return self._kept(node.all_input_nodes[0])
        name = getattr(node.target, "name", None)
        return callable(name) and name() in self._operators

    def uuid(self) -> Any:
        """What is compiled so is found again by this, and by nothing else."""
        return get_hash_for_files((__file__,)), sorted(self._operators)
