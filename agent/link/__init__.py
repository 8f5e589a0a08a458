"""The connection to the controller: enrolment, messages, telemetry."""
