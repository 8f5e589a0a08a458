"""The command line `fleet-agent`."""
