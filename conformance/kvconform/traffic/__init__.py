"""Where requests come from: readers and makers of real traffic's formats."""
