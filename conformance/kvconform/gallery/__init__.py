"""The bug gallery: known defects, each as a small mutant of the reference, and who finds it.

mutants/   the defects, by topic
finders    vectors, fuzzing and traffic look for each
replaying  traffic through the reference scheduler, small enough for a hundred runs
story      the story of a defect

Not here: defects that real engines show today (`engines/matrix`).
"""
