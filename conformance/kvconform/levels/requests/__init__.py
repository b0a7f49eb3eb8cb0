"""The request level: operations and their answers, minimised, described and rendered."""
