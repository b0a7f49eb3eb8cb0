"""The bug gallery: known defects, each as a small mutant of the reference, and the checks that find it.

mutants/   the defects, by topic
finders    vectors, fuzzing and traffic search for each
replaying  traffic through the reference scheduler, small enough for a hundred runs
description  the description of a defect

Not here: defects that real engines show today (`engines/matrix`).
"""
