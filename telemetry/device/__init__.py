"""Sensors, recorder and spool on the device."""
