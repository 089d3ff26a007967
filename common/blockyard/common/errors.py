"""The roots of Blockyard's typed errors. Owns two classes; never knows what can go wrong in any one part."""


class BlockyardError(Exception):
    """Anything Blockyard reports as wrong; the message names the thing, its value and what would be right."""


class ConfigError(BlockyardError):
    """A value given by the operator cannot be used."""
