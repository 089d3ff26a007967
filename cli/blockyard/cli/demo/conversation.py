"""Owns a chat that moves from one engine to the other and back, as a load balancer without stickiness sends it.

What must hold: whole chunks of the last request are cached wherever the next one goes. It never knows why they
are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from blockyard.cli.demo.chat_client import Completion, Message, Options
from blockyard.cli.demo.engine import CHUNK_TOKENS, DemoEngine

# Characters that survive being decoded and encoded again, so that an answer's own blocks can be found next turn.
PRINTABLE = list(range(0x20, 0x7F))
ANSWER = Options(max_tokens=24, extra={"allowed_token_ids": PRINTABLE})
# A user reads before writing; stores of the last answer end meanwhile.
READING_S = 0.5

SYSTEM = (
    "You help the night shift of a container port. Berths are lettered from the river mouth, cranes are numbered "
    "from the land side, and a yard block holds forty rows of six tiers. A box is named by berth, block, row and "
    "tier. Reefers need a plug and are checked each hour; tanks stand alone in the bottom tier; empty boxes go to "
    "the north field. Answer in one sentence, name the box first, and say when you do not know. "
)
USER = (
    "The feeder at berth C leaves at five, and two reefers for it stand in block seven under four boxes of steel "
    "that stay. Crane two is out for repair until three, crane four works berth D. Where should the steel go so "
    "that the plugs stay free, and which crane can take the reefers without crossing the tank row? ",
    "The pilot asks for an hour more, so we leave at six. The repair of crane two is done early after all. Would "
    "you still move the steel first, or open the hatch of bay twelve and take the two reefers from the quay side? ",
    "A truck brings a third reefer for the same ship, not on the list, plugged in at the gate since midnight. Can "
    "it go on deck next to the two others, and what do we tell the planner about the weight in bay twelve? ",
    "Last one: the planner wants the order of moves from now to departure, with a crane for each, so that the next "
    "shift can see what is left when they come at half past five. ",
)


@dataclass(frozen=True, slots=True)
class Turn:
    engine: str
    answer: Completion
    expected_cached: int

    @property
    def held(self) -> bool:
        """Whether all that was stored before was found again."""
        return self.answer.cached_tokens >= self.expected_cached


async def hold(route: Sequence[DemoEngine]) -> list[Turn]:
    """One turn on each engine of the route."""
    messages: list[Message] = [{"role": "system", "content": SYSTEM}]
    turns: list[Turn] = []
    stored = 0
    for engine, words in zip(route, USER, strict=True):
        messages.append({"role": "user", "content": words})
        answer = await engine.client.chat(messages, ANSWER)
        turns.append(Turn(engine.name, answer, stored))
        messages.append({"role": "assistant", "content": answer.text})
        stored = answer.prompt_tokens // CHUNK_TOKENS * CHUNK_TOKENS
        await asyncio.sleep(READING_S)
    return turns
