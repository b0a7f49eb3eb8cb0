"""What is made of something that does not conform: it is shortened, told, and rendered.

finding   the one object that everything here renders: rule, trace, expected against observed, holders, place
outcome   what came out of a command, case by case; its schema
shrink    the fewest operations that still show it
telling   a trace and a finding of the request level, told; `memory/telling` does it for the law
story     events in sentences, and what the model knows since when
text      a finding as text; `map`: its trace, with who has what beside each step
timeline  a trace as an HTML table; `page`: a report or a trace as a page, by the template `page.html`
formats   JSON, JUnit, SARIF
summary   what was judged, as tables
whole     a trace judged to its end: what is found after the first finding, too
baseline  findings that are known
wording   words that these share

Not here: what finds it (`vectors`, `fuzzing`, `traffic`, `exploring`), and known defects (`gallery`).
"""
