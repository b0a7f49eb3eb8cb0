"""What is made of something that does not conform: it is shortened, reported, and told.

shrink    the fewest operations that still show it
report    rule, place, expected against observed
story     what happens, event by event, and why that is a contradiction
timeline  who owns what after each operation, as a table
summary   what was judged, as tables
whole     a trace judged to its end: what is found after the first finding, too
accepted  findings that are known
wording   words that these share

Not here: what finds it (`vectors`, `fuzzing`, `traffic`, `exploring`), and known defects (`gallery`).
"""
