"""The engine against the specification: random operations, every answer checked, failures shrunk.

The vectors are tests too: `pytest --kvspec-impl toy_engine:Adapter`.
"""

from toy_engine import Adapter

from kvconform.fuzzing.machine import machine

TestToyEngine = machine(Adapter).TestCase
