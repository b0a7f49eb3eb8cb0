"""Mutants are exchanged as `run.py` says, and what it names is there."""

from collections.abc import Iterator

import pytest

from tests.mutation import equivalent, switch
from tests.mutation.run import PACKAGES, ROOT, TARGETS
from tests.mutation.undecorated import undecorated


@pytest.mark.parametrize("name", TARGETS)
def test_what_a_target_names_is_there(name: str) -> None:
    target = TARGETS[name]
    for part in target.left_out:
        assert (ROOT / target.folder / part).exists()
    for test in (*target.tests, *target.deselected, *target.golden):
        file, _, function = test.partition("::")
        assert (ROOT / file).exists() and (not function or f"def {function}(" in (ROOT / file).read_text()), test


@pytest.mark.parametrize("one", equivalent.KNOWN)
def test_what_is_known_to_change_nothing_is_a_line_of_its_module(one: equivalent.Equivalent) -> None:
    parts = one.function.split(".")
    top = next(ROOT / folder for folder in PACKAGES if (ROOT / folder / parts[0]).is_dir())
    files = [top / "/".join(parts[:end]) for end in range(1, len(parts))]
    sources = [path for file in files for path in (file.with_suffix(".py"), file / "__init__.py") if path.exists()]
    assert one.why and one.was != one.becomes
    was = one.was.replace("def f(", f"def {parts[-1]}(")
    assert f"{was}\n" in sources[-1].read_text() and f"def {parts[-1]}(" in sources[-1].read_text()


def test_what_is_known_to_change_nothing_is_known_by_function_and_line() -> None:
    was, becomes = (
        f"if op.obs is not None and op.obs.freed and returned {sign} before.allocated:" for sign in ("<", "<=")
    )
    change = [f"-    {was}", f"+    {becomes}"]
    assert equivalent.known("kvspec.model.leaving.x__hand_to_slot", change).endswith("two equal numbers")
    assert equivalent.known("kvspec.model.running.x_extend", change) == ""
    assert equivalent.known("kvspec.model.leaving.x__hand_to_slot", [*change, "+        pass"]) == ""
    forget = ["-    while len(self._seen) > _REMEMBERED:", "+    while len(self._seen) >= _REMEMBERED:"]
    assert equivalent.known("kvcheck.clocks.xǁClocksǁ_forget", forget).endswith("its cost alone")


@pytest.fixture
def no_switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(switch, "SWITCHES", [])
    yield


class Base:
    def size(self) -> int:
        return 1


class Sized(Base):
    def size(self, more: int = 1) -> int:
        return super().size() + more

    def bigger(self, more: int = 2) -> int:
        return super().size() + more

    def other(self) -> int:
        return 0


def test_a_function_is_exchanged_with_its_defaults(no_switches: None) -> None:
    original, own = Sized.size, Sized().size
    mutants = {"_mutmut_orig": original, "x__mutmut_1": Sized.bigger, "x__mutmut_2": Sized.other}
    assert switch.wrap_in_trampoline(mutants)(original) is original  # type: ignore[arg-type]
    name = f"{__name__}.x__mutmut_1"
    assert list(switch.mutants()) == [name], "one that does not close over the same names cannot be exchanged"
    assert own() == 2
    code, defaults = original.__code__, original.__defaults__
    switch.exchange(name)
    assert own() == 3
    original.__code__, original.__defaults__ = code, defaults
    with pytest.raises(KeyError):
        switch.exchange(f"{__name__}.x__mutmut_3")


def test_contracts_and_properties_are_taken_off() -> None:
    contract = "class A:\n    @require(lambda self: True)\n    def b(self):\n        return 1\n"
    assert undecorated(contract) == "class A:\n    def b(self):\n        return 1\n"
    assert undecorated(contract.replace("require(lambda self: True)", "property")) == (
        "class A:\n    def get_b(self):\n        return 1\n    b = property(lambda self: self.get_b())\n"
    )
