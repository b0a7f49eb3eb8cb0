"""An implementation under the eye of the model: every answer is checked, and every failure names its cause."""

from typing import Any

import pytest

from kvconform.oracle import Model
from kvconform.proxy import ImplementationFailed, OracleProxy, RuleBroken
from kvref.manager import Manager
from kvspec.events import (
    Complete,
    Config,
    Extend,
    Finish,
    Launch,
    MatchAnswer,
    MatchPrefix,
    OpenSession,
    Operation,
    Refusal,
    Snapshot,
    SnapshotAnswer,
    Submit,
)
from tests.conformance.helpers import KeepsPages, Raises, Silent, WrongType

CONFIG = Config(page_size=4, num_pages=16, num_rows=2, max_context_len=64)


def life() -> list[Operation[Any]]:
    return [
        Submit("r", [1, 2, 3, 4, 5, 6]),
        MatchPrefix("r"),
        Extend([("r", 6)]),
        Launch(1, ["r"]),
        Complete(1, {"r": 7}),
        Finish("r"),
    ]


def live(proxy: OracleProxy) -> None:
    for op in life():
        proxy(op)


def test_an_answer_is_returned_and_set() -> None:
    proxy = OracleProxy(Manager(CONFIG), Model(CONFIG))
    proxy(Submit("r", [1, 2]))
    op = MatchPrefix("r")
    answer = proxy(op)
    assert answer is op.obs
    assert answer == MatchAnswer(0, 0, answer.freed)
    assert proxy.steps == proxy.model.steps == 2


def test_a_rightful_refusal_is_raised_and_set() -> None:
    proxy = OracleProxy(Manager(CONFIG), Model(CONFIG))
    op = Finish("r")
    with pytest.raises(Refusal):
        proxy(op)
    assert op.obs is None
    assert op.refused is not None and op.refused.rule == "OP-1"


def test_a_wrong_answer_breaks_a_rule_at_its_step() -> None:
    with pytest.raises(RuleBroken) as caught:
        live(OracleProxy(KeepsPages(CONFIG), Model(CONFIG)))
    assert caught.value.rule.id == "PAGE-1"
    assert caught.value.step == 6
    assert isinstance(caught.value.op, Finish) and caught.value.op.obs is not None
    assert (caught.value.expected, caught.value.observed) == ([2], [])


def test_a_wrongful_refusal_breaks_a_rule() -> None:
    class Refuses(Manager):
        def open_session(self, session: str) -> Any:
            raise Refusal(None, "not today")

    with pytest.raises(RuleBroken, match="OP-1: the operation was refused \\(not today\\)"):
        OracleProxy(Refuses(CONFIG), Model(CONFIG))(OpenSession("s"))


@pytest.mark.parametrize(
    ("implementation", "reason"),
    [
        (Raises, "KeyError: 'lost r'"),
        (Silent, "TypeError: finish did not answer a valid ReleaseAnswer: None"),
        (
            WrongType,
            "TypeError: finish did not answer a valid ReleaseAnswer: "
            "Expected `int | array`, got `str` - at `$.freed[0]`",
        ),
    ],
)
def test_an_implementation_that_fails_is_blamed_at_its_step(implementation: type[Manager], reason: str) -> None:
    with pytest.raises(ImplementationFailed) as caught:
        live(OracleProxy(implementation(CONFIG), Model(CONFIG)))
    assert str(caught.value) == reason
    assert caught.value.step == 6
    assert isinstance(caught.value.op, Finish) and caught.value.op.obs is None


def test_a_failure_of_the_model_is_not_blamed_on_the_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(model: Model, op: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Model, "step", fails)
    with pytest.raises(ZeroDivisionError):
        OracleProxy(Manager(CONFIG), Model(CONFIG))(OpenSession("s"))


def test_operations_are_recorded_with_their_answers_even_the_wrong_one() -> None:
    recorded: list[Operation[Any]] = []
    with pytest.raises(RuleBroken):
        live(OracleProxy(KeepsPages(CONFIG), Model(CONFIG), record=recorded.append))
    assert [type(op) for op in recorded] == [type(op) for op in life()]
    assert all(op.obs is not None for op in recorded)


def test_a_snapshot_is_compared_every_so_often() -> None:
    class Liar(Manager):
        def snapshot(self) -> SnapshotAnswer:
            return SnapshotAnswer(free_pages=[1])

    recorded: list[Operation[Any]] = []
    live(OracleProxy(Manager(CONFIG), Model(CONFIG), record=recorded.append, snapshot_every=4))
    assert [type(op) for op in recorded].index(Snapshot) == 4
    assert len(recorded) == 7
    live(OracleProxy(Liar(CONFIG), Model(CONFIG)))
    with pytest.raises(RuleBroken, match="PAGE-1: the free pages differ") as caught:
        live(OracleProxy(Liar(CONFIG), Model(CONFIG), snapshot_every=4))
    assert caught.value.step == 4
