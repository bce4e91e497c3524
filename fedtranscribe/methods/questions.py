"""A method, and after its last answer the questions that other packages bring."""

from collections.abc import Sequence
from typing import Any

from fedtranscribe.config.facts import Facts
from fedtranscribe.methods.method import Combined, Method, read_answers, stored_answers
from fedtranscribe.questions.kinds import question_of
from fedtranscribe.questions.question import Query


class WithQuestions:
    """A `Method` that is another one until that has finished; what is not said here, it does.

    Args:
        method: makes student and generator.
        kinds: what is asked then, in this order.
        first: part of the plan that the first of them belongs to.
        facts: of all holders, public.
        run: name of the run.
    """

    def __init__(
        self, method: Method[Any], kinds: Sequence[str], first: int, facts: Facts, run: str
    ) -> None:
        self._method = method
        self._kinds = kinds
        self._first = first
        self._facts = facts
        self._run = run
        self._learned: list[tuple[Query, Combined]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    @property
    def stage(self) -> str:
        """What is counted, in words."""
        return "questions" if self._method.finished else self._method.stage

    @property
    def part(self) -> int:
        """Parts of the questions are the last of the plan."""
        return self._first + len(self._learned) if self._method.finished else self._method.part

    @property
    def round(self) -> int:
        """How many queries have been learned from."""
        return self._method.round + len(self._learned)

    @property
    def rows(self) -> int:
        """An answer to a question is one row."""
        return self._method.rows + len(self._learned)

    @property
    def finished(self) -> bool:
        """Whether everything has been asked."""
        return self._method.finished and len(self._learned) == len(self._kinds)

    def ask(self) -> Query:
        """The method's next query, or the next question."""
        if not self._method.finished:
            return self._method.ask()
        kind = self._kinds[len(self._learned)]
        return question_of(kind).ask(f"{self._run}/{kind}", self._facts)

    def learn(self, query: Query, answer: Combined) -> dict[str, float]:
        """Pass an answer on, or keep it."""
        if not self._method.finished:
            return self._method.learn(query, answer)
        self._learned.append((query, answer))
        return {}

    @property
    def answers(self) -> dict[str, dict[str, Any]]:
        """What came back, by kind: the sum over all holders, and the std of its noise."""
        return {
            query.kind: {"values": answer.values[0].tolist(), "noise_std": answer.noise}
            for query, answer in self._learned
        }

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs to go on as if nothing had happened."""
        return {"method": self._method.state(), "answers": stored_answers(self._learned)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan."""
        self._method.load_state(state["method"])
        self._learned = read_answers(state["answers"], Query)
