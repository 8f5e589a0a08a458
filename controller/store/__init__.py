"""The control state: all its SQL, one module for each kind of object.

Rules:
- Functions take the session of the caller's transaction; they never commit.
- Services read the rows that they get, and hand in new ones. They change no row themselves.
- A change of state is an UPDATE that names the states from which it is allowed and checks how many
  rows it changed, so that two writers cannot both make it.
"""
