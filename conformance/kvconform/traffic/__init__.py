"""Real and synthetic requests, served by a scheduler, with every answer checked.

mooncake   real traffic in the format of the Mooncake traces
replay     `kvspec replay`: traffic through the reference scheduler
soak       `kvspec soak`: every combination of the scheduler's modes, again and again

Not here: operations without a scheduler (`fuzzing`).
"""
