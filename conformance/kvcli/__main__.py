"""`python -m kvcli` is `kvspec`, where the package is not installed but on the path."""

from kvcli.main import main

main()
