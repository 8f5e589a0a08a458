"""Schema migrations of the control state; see `controller.store.database.migrate`."""
