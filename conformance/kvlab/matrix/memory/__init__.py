"""Releases of engines as they run: each one driven, and what the law finds in it, by release.

report   what was found in one release: what is kept, printed and compared
worker   drives one release, in a process of its own
check    releases one after the other; what is known already is not driven again
table    known defects by release, and what nobody has explained

Not here: releases behind the protocol, judged by requests (`engines.matrix`).
"""
