"""The bug gallery: known defects, each as a small mutant of the reference, and the checks that find it.

mutants/      the defects, by topic
tiers/        defects of the memory level
finders       vectors, fuzzing and traffic search for each
memory_alone  the memory checker alone searches for each
replaying     traffic through the reference scheduler, small enough for a hundred runs
walking       random walks of the host tier
description   the description of a defect

Not here: defects that real engines show today (`kvlab.matrix`).
"""
