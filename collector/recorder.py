"""Keeps what the hooks see: one row per communication call and per host wait.

Plain Python on purpose: it runs inside the training step, on whatever thread issues the call,
so each method does little and holds no reference to a tensor or a Work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Protocol

from foretrace.collector.calls import Operator, payload, scalar_type
from foretrace.collector.spool import Call, Done, Group, Wait


@dataclass(slots=True)
class GroupState:
    """A process group as the hook meets it; the group itself is not kept alive.

    Attributes:
        name: the rank's own name of the group.
        description: what its maker called it.
        rank: this process's rank within the group.
        ranks: global rank of each member, empty where unknown.
        index: its place in the recording's list of groups.
        next_seq: number of the next collective.
        next_p2p: number of the next p2p call for each (is_send, peer).
    """

    name: str
    description: str
    rank: int
    ranks: list[int]
    index: int = -1
    next_seq: count[int] = field(default_factory=count)
    next_p2p: dict[tuple[bool, int], count[int]] = field(default_factory=dict)

    def number(self, operator: Operator, root: int) -> int:
        """Sequence number of a call that is being made."""
        if not operator.p2p:
            return next(self.next_seq)
        key = (operator.kind == "send", root)
        if key not in self.next_p2p:
            self.next_p2p[key] = count()
        return next(self.next_p2p[key])

    def global_rank(self, root: int) -> int:
        """Global rank of a rank of the group, -1 for none."""
        return self.ranks[root] if 0 <= root < len(self.ranks) else -1


class DeviceTimer(Protocol):
    """Takes device timestamps around a call; only where the profiler takes none."""

    def reached(self, ident: int, tensor: Any) -> None:
        """The caller's stream is about to reach call ``ident``."""

    def waiting(self, ident: int) -> None:
        """The caller's stream is about to wait for call ``ident``."""

    def waited(self, ident: int) -> None:
        """The caller's stream has waited for call ``ident``."""


class Ticket(NamedTuple):
    """A call between its begin and its end; a tuple, since those are the cheapest to make."""

    ident: int
    operator: str
    group: int
    seq: int
    peer: int
    bytes_in: int
    bytes_out: int
    dtype: Any
    is_async: int
    splits: tuple[list[int], list[int]] | None
    backward: int


class Recorder:
    """Rows of all calls and waits between :meth:`open` and :meth:`close`.

    Sequence numbers are counted from construction on, so that ranks which hook in at the
    same step agree on them even when they start to keep rows a step later.

    Args:
        groups: describes a process group that is seen for the first time.
        clock: ns since the epoch.
        timer: takes device timestamps, None for none.
        backward: number of the backward pass that runs on this thread, -1 for none.
    """

    def __init__(
        self,
        groups: Callable[[Any], GroupState],
        clock: Callable[[], int] = time.time_ns,
        timer: DeviceTimer | None = None,
        backward: Callable[[], int] = lambda: -1,
    ) -> None:
        self.clock = clock
        self._backward = backward
        self.timer = timer
        self.own_ns: list[int] = []
        self._find_group = groups
        self._groups: dict[str, GroupState] = {}
        self._lock = threading.Lock()
        self._idents = count()
        self._keeping = False
        self._rows: list[tuple[Ticket, int, int, int]] = []
        self._waits: list[tuple[int, int, int, int, bool]] = []
        self._done: list[tuple[int, int, int]] = []
        self._last: dict[int, int] = {}
        self._works: dict[int, int] = {}
        self._made: set[int] = set()
        self._storages: dict[int, int] = {}

    def open(self) -> None:
        """Start to keep rows."""
        self._rows, self._waits, self._done = [], [], []
        self.own_ns = []
        self._keeping = True

    def close(self) -> None:
        """Keep no more rows."""
        self._keeping = False

    def begin(
        self, name: str, operator: Operator, args: Sequence[Any], group: Any, is_async: int
    ) -> Ticket:
        """Take down a call that is about to be made.

        Args:
            name: operator name without the library's prefix.
            operator: how to read it.
            args: its arguments.
            group: the process group among them.
            is_async: 1 asynchronous, 0 blocking, -1 unknown.
        """
        state = self._groups.get(group.group_name) or self._meet(group)
        put, got, dtype, root, splits = payload(operator, args, state.rank)
        ident = next(self._idents)
        if self.timer is not None and self._keeping:
            tensors = operator.inputs(args) or operator.outputs(args)
            if tensors:
                self.timer.reached(ident, tensors[0])
        seq, peer = state.number(operator, root), state.global_rank(root)
        origin = self._backward()
        return Ticket(
            ident, name, state.index, seq, peer, put, got, dtype, is_async, splits, origin
        )

    def _meet(self, group: Any) -> GroupState:
        """The state of a group seen for the first time."""
        with self._lock:  # the main and the backward thread may meet it together
            name = group.group_name
            if name not in self._groups:
                state = self._find_group(group)
                state.index = len(self._groups)
                self._groups[name] = state
            return self._groups[name]

    def end(self, ticket: Ticket, start_ns: int, end_ns: int) -> None:
        """Take down that the call has returned."""
        thread = threading.get_native_id()
        self._last[thread] = ticket.ident
        if self._keeping:
            self._rows.append((ticket, thread, start_ns, end_ns))

    def spend(self, ns: int) -> None:
        """Count the hook's own time for one call."""
        self.own_ns.append(ns)

    def remember_work(self, work: object) -> None:
        """``work`` stands for the last call of this thread; it is not kept alive."""
        ident = self._last.get(threading.get_native_id())
        if ident is not None:
            self._works[id(work)] = ident
            self._made.add(ident)

    def remember_outputs(self, ident: int, pointers: Sequence[int]) -> None:
        """Whoever waits for a tensor at one of ``pointers`` waits for call ``ident``."""
        for pointer in pointers:
            self._storages[pointer] = ident

    def work_ident(self, work: object) -> int:
        """The call that ``work`` stands for, -1 if it was made before."""
        return self._works.get(id(work), -1)

    def output_ident(self, pointer: int) -> int:
        """The call whose output lies at ``pointer``, -1 if none was seen."""
        return self._storages.pop(pointer, -1)

    def waiting(self, ident: int) -> None:
        """A host thread is about to wait for call ``ident``."""
        if self.timer is not None and self._keeping:
            self.timer.waiting(ident)

    def waited(self, ident: int, start_ns: int, annotated: bool) -> None:
        """A host thread has waited for call ``ident`` since ``start_ns``."""
        if self._keeping:
            row = (ident, threading.get_native_id(), start_ns, self.clock(), annotated)
            self._waits.append(row)
            if self.timer is not None:
                self.timer.waited(ident)

    def completed(self, ident: int) -> None:
        """The work of call ``ident`` is complete; called on the library's own thread."""
        if self._keeping:
            self._done.append((ident, threading.get_native_id(), self.clock()))

    def groups(self) -> list[Group]:
        """The process groups met, in the order of their indices."""
        return [Group(g.name, g.description, g.ranks) for g in self._groups.values()]

    def rows(self) -> tuple[list[Call], list[Wait], list[Done]]:
        """All rows kept, calls in the order they were made."""
        ordered = sorted(self._rows, key=lambda row: row[0].ident)
        calls = [_call(*row, row[0].ident in self._made) for row in ordered]
        return calls, [Wait(*row) for row in self._waits], [Done(*row) for row in self._done]


def _call(ticket: Ticket, thread: int, start_ns: int, end_ns: int, from_python: bool) -> Call:
    splits = ticket.splits or (None, None)
    return Call(
        ident=ticket.ident,
        operator=ticket.operator,
        thread=thread,
        start_ns=start_ns,
        end_ns=end_ns,
        group=ticket.group,
        seq=ticket.seq,
        peer=ticket.peer,
        bytes_in=ticket.bytes_in,
        bytes_out=ticket.bytes_out,
        dtype=scalar_type(ticket.dtype) if ticket.dtype is not None else "",
        is_async=ticket.is_async,
        in_splits=splits[0],
        out_splits=splits[1],
        backward=ticket.backward,
        from_python=from_python,
    )
