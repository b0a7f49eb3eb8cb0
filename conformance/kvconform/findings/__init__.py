"""Findings as objects, and their forms: text, HTML, JSON, JUnit, SARIF.

finding   the object that every form renders: rule, trace, expected and observed values, holders, place
outcome   the report of a command, case by case; its schema
text      a finding as text; `map`: its trace, with the pools beside each step
timeline  a trace as an HTML table; `page`: a report or a trace as a page, by the template `page.html`
formats   JSON, JUnit, SARIF
summary   the checked rules and the skipped vectors, as tables
folding   long lists in a report, cut
baseline  known findings
wording   words that these share

Not here: making findings (`vectors`, `fuzzing`, `traffic`, `exploring`, `levels`), and known defects (`gallery`).
"""
