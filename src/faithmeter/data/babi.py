"""Generator of bAbI tasks 1, 2 and 3 (Weston et al., 2015): the same little world, words and text form.

Four persons walk between six places; in tasks 2 and 3 they also pick up and put down three objects. A question is
asked after every second statement, five to a story, and only about something that one of the last five statements
touched, as in the published files. Written by hand because the published generator is not a Python package and its
files cannot be shipped; a test checks that the reader below gives the published answer and the published supporting
facts for every question of the published files.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np

PERSONS = ("Daniel", "John", "Mary", "Sandra")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
OBJECTS = ("apple", "football", "milk")
MOVE = ("journeyed to", "moved to", "travelled to", "went back to", "went to")
GET = ("got", "grabbed", "picked up", "took")
DROP = ("discarded", "dropped", "left", "put down")

QUESTIONS_PER_STORY = 5
STATEMENTS_PER_QUESTION = 2
RECENT = 5  # the newest supporting fact is one of this many last statements

Place = tuple[str, int]  # a place, and the number of the statement that tells it


class BabiRow(TypedDict):
    """One question, in the columns of the published data."""

    context: list[str]
    question: str
    answer: str
    supporting: list[int]


@dataclass
class Reader:
    """What a reader knows after each statement: who is where, and where each object has been."""

    person: dict[str, Place] = field(default_factory=dict)
    holder: dict[str, str] = field(default_factory=dict)
    object: dict[str, Place] = field(default_factory=dict)
    last_touch: dict[str, int] = field(default_factory=dict)
    trail: dict[str, list[Place]] = field(default_factory=dict)

    def read(self, number: int, statement: str) -> None:
        """Take in statement `number` of the story."""
        words = statement.rstrip(".").split()
        person = words[0]
        if words[-1] in PLACES:
            self.person[person] = (words[-1], number)
            for thing in [thing for thing, holder in self.holder.items() if holder == person]:
                self._moved(thing, self.person[person])
            return
        thing = next(word for word in words if word in OBJECTS)
        self.last_touch[thing] = number
        if person in self.person:
            self._moved(thing, self.person[person])
        if " ".join(words[1:]).startswith(GET):
            self.holder[thing] = person
        else:
            self.holder.pop(thing, None)

    def _moved(self, thing: str, place: Place) -> None:
        self.object[thing] = place
        trail = self.trail.setdefault(thing, [])
        if not trail or trail[-1][0] != place[0]:
            trail.append(place)

    def questions(self, task: int) -> dict[str, tuple[str, list[int]]]:
        """Return every question of the task that can be answered now, with its answer and supporting facts."""
        if task == 1:
            return {f"Where is {who}?": (place, [number]) for who, (place, number) in self.person.items()}
        if task == 2:
            return {
                f"Where is the {thing}?": (place, [self.last_touch[thing], number])
                for thing, (place, number) in self.object.items()
                if self._carried_since(thing, number)
            }
        return {
            f"Where was the {thing} before the {place}?": (before, [self.last_touch[thing], number, before_number])
            for thing, trail in self.trail.items()
            for (before, before_number), (place, number) in itertools.pairwise(trail)
            if self._carried_since(thing, before_number)
        }

    def _carried_since(self, thing: str, number: int) -> bool:
        """Whether the object lies where it was put, or was carried on the move that statement `number` tells."""
        return thing not in self.holder or self.last_touch[thing] < number


def generate(task: int, rows: int, seed: int) -> list[BabiRow]:
    """Return `rows` questions of bAbI task 1, 2 or 3; the same seed gives the same rows."""
    if task not in (1, 2, 3):
        raise ValueError(f"bAbI task {task}: only tasks 1, 2 and 3 are generated")
    random = np.random.default_rng([seed, task])
    found: list[BabiRow] = []
    while len(found) < rows:
        found.extend(_story(task, random))
    return found[:rows]


def _story(task: int, random: np.random.Generator) -> Iterator[BabiRow]:
    reader, context, asked = Reader(), list[str](), 0
    for number, statement in enumerate(_life(task, random)):
        reader.read(number, statement)
        context.append(statement)
        if len(context) % STATEMENTS_PER_QUESTION:
            continue
        candidates = _candidates(task, reader, context, random)
        if not candidates:
            continue
        question, (answer, supporting) = candidates[random.integers(len(candidates))]
        yield {"context": context.copy(), "question": question, "answer": answer, "supporting": supporting}
        asked += 1
        if asked == QUESTIONS_PER_STORY:
            return


def _candidates(
    task: int, reader: Reader, context: list[str], random: np.random.Generator
) -> list[tuple[str, tuple[str, list[int]]]]:
    """Return what may be asked now: chosen so that story lengths and the age of facts come out as published."""
    oldest = max(0, len(context) - RECENT)
    recent = [item for item in reader.questions(task).items() if max(item[1][1]) >= oldest]
    if task == 2:
        return recent
    drawn = int(random.integers(oldest, len(context)))
    if task == 1:
        person = context[drawn].split()[0]
        return [item for item in recent if item[0] == f"Where is {person}?"]
    return [item for item in recent if drawn in item[1][1]]


def _life(task: int, random: np.random.Generator) -> Iterator[str]:
    """Yield what happens, without end; where everybody and everything starts is hidden from the reader."""

    def pick(options: tuple[str, ...] | list[str]) -> str:
        return options[random.integers(len(options))]

    where = {name: pick(PLACES) for name in PERSONS + OBJECTS}
    if task == 1:
        where.update(dict.fromkeys(PERSONS, ""))
    holder: dict[str, str] = {}
    while True:
        person = pick(PERSONS)
        kind = "move" if task == 1 else pick(("move", "get", "drop"))
        if kind == "move":
            where[person] = pick([place for place in PLACES if place != where[person]])
            yield f"{person} {pick(MOVE)} the {where[person]}."
            continue
        if kind == "get":
            options = [o for o in OBJECTS if o not in holder and where[o] == where[person]]
        else:
            options = [o for o in OBJECTS if holder.get(o) == person]
        if not options:
            continue
        thing = pick(options)
        if kind == "get":
            holder[thing] = person
            there = task == 2 or random.random() < 0.2
        else:
            del holder[thing]
            where[thing] = where[person]
            there = random.random() < 0.2
        yield f"{person} {pick(GET if kind == 'get' else DROP)} the {thing}{' there' if there else ''}."
