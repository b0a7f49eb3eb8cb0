"""The vectors, one folder a topic, and their runner.

files     where the vectors are
runner    a vector against an implementation; a recorded trace by the model alone
cases     combinations of factors, every two values of which meet
pairwise  writes the vectors of ways out, one for each case

Not here: reading of files (`traces`), and reports of failures (`findings`).
"""
