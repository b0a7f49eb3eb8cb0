"""The commands of `kvspec`: their arguments, their help, and nothing else.

A module here is imported whenever `kvspec` is called, so it imports nothing that takes long: what a command does stands
in the room that it is about, and is imported when the command is carried out.

options    what several commands have
checking   run, check, merge, show, rules, schema
searching  fuzz, soak, explore, prove, bugs
replay     replay
engines    engines, matrix
attaching  attach
starting   init
"""
