"""What the machine asks its shell to do, in order. Values only; owns no rule."""

from dataclasses import dataclass

from blockyard.common.messages.cluster import ToWorker


@dataclass(frozen=True, slots=True)
class SendTo:
    """Send this message on that link; a link that cannot take it is to be closed."""

    link: int
    message: ToWorker


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close the link once what was sent before is out; the machine has forgotten it already."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class NoteDrift:
    """Tell people: what this node's worker holds differs from the index in these buckets of keys."""

    link: int
    node: str
    buckets: tuple[int, ...]


Instruction = SendTo | CloseLink | NoteDrift
