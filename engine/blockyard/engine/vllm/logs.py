"""Our log lines where an operator of vLLM looks for them. Owns nothing but that."""

import logging


def show_with_vllms() -> None:
    """Send what `blockyard` logs to vLLM's own handlers, once, unless the operator gave ours some."""
    ours, theirs = logging.getLogger("blockyard"), logging.getLogger("vllm")
    if not ours.handlers:
        ours.handlers.extend(theirs.handlers)
        ours.setLevel(theirs.level)
        ours.propagate = theirs.propagate
