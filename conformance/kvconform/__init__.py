"""The conformance suite: a folder for each thing that a person comes for.

Beside the folders stands only what everybody needs: `protocol` (what an engine implements), `features` (what it may
lack), `checked` (an engine under the eye of the model), `implementations` (their names), `errors`, `console` and `cli`.
"""
