"""Draws answers as text: sparklines, bars and plots over time. Pure.

Rules:
- No line is wider than asked, whatever the names and the values are; a width counts columns of a
  terminal, of which some characters take two.
- A value that is not finite is not drawn: it is a gap.
- Where the output cannot show Unicode, all is drawn with ASCII.
"""
