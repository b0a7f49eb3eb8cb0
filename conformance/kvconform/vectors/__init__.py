"""The vectors, one folder a topic, and what carries them out.

files     where the vectors are
runner    a vector against an implementation; a recorded trace by the model alone
pairwise  writes the vectors of ways out, in which every two things that may be going on meet

Not here: reading of files (`traces`), and reports of failures (`findings`).
"""
