"""`python -m kvconform` is `kvspec`, where the package is not installed but on the path."""

from kvconform.cli import main

main()
