"""Schema migrations of the control state; see `controller.database.migrate`."""
